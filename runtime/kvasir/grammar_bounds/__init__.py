"""Which grammars the engine accepts: checked in milliseconds, before any of them is compiled. Without torch.

Reading order: bad_grammar.py (how a grammar is refused), limits.py, keywords.py (the keywords of JSON Schema, as
data), check.py (one grammar of any kind), schema.py (a JSON Schema: its walk) with keyword_checks.py, numbers.py,
patterns.py, references.py, disjoint.py and endless.py; json_options.py; lark_and_ebnf.py (grammars, also
with schemas inside).

A schema is not only checked but also adapted: written so that llguidance and the validators of JSON Schema agree.
"""

from kvasir.grammar_bounds.bad_grammar import BadGrammar
from kvasir.grammar_bounds.check import adapt_grammar, check_grammar
from kvasir.grammar_bounds.keywords import KEYWORDS, Support, SupportStatus

__all__ = ["KEYWORDS", "BadGrammar", "Support", "SupportStatus", "adapt_grammar", "check_grammar"]
