"""Checks a grammar of any kind, and writes it for llguidance."""

import msgspec

from kvasir.grammar_bounds.bad_grammar import BadGrammar
from kvasir.grammar_bounds.json_options import json_options
from kvasir.grammar_bounds.lark import adapt_lark, check_size
from kvasir.grammar_bounds.schema import adapt_schema
from kvasir.grammar_bounds.special_names import check_no_mark
from kvasir.request.constraint import Grammar, GrammarKind


def check_grammar(grammar: Grammar) -> None:
    """Raise BadGrammar unless the grammar is well-formed, supported and within the limits.

    Takes milliseconds, or about a second at worst. The compilation may still fail.
    """
    adapt_grammar(grammar)


def adapt_grammar(grammar: Grammar) -> Grammar:
    """Return the grammar for llguidance, whose outputs are valid for the original. Raises BadGrammar."""
    check_no_mark(grammar.text)
    options = json_options(grammar)
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return msgspec.structs.replace(grammar, text=adapt_schema(grammar.text))
        case GrammarKind.LARK:
            return msgspec.structs.replace(grammar, text=adapt_lark(grammar.text, options))
        case GrammarKind.REGEX | GrammarKind.EBNF:
            check_size(len(grammar.text.encode(errors="surrogatepass")))
            return grammar
    raise BadGrammar("this engine does not know the kind of this grammar: update it")
