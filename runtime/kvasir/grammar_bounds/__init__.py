"""Checks and adapts grammars in milliseconds, before they are compiled. docs/design/grammars.md explains why.

Reading order: check.py, limits.py, keywords.py (data); schema.py with keyword_checks.py, numbers.py, patterns.py,
references.py, disjoint.py and endless.py; lark.py.
"""

from kvasir.grammar_bounds.bad_grammar import BadGrammar
from kvasir.grammar_bounds.check import adapt_grammar, check_grammar
from kvasir.grammar_bounds.keywords import KEYWORDS, Support, SupportStatus

__all__ = ["KEYWORDS", "BadGrammar", "Support", "SupportStatus", "adapt_grammar", "check_grammar"]
