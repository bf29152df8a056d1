"""Grammars in one line each, and their refusals."""

import json
from typing import Any

import pytest

from kvasir.grammar_bounds import BadGrammar, check_grammar
from kvasir.request.constraint import Grammar, GrammarKind


def schema_grammar(schema: Any) -> Grammar:
    """A dict is written as JSON, a text is taken as it is."""
    return Grammar(GrammarKind.JSON_SCHEMA, schema if isinstance(schema, str) else json.dumps(schema))


def allow(schema: Any) -> None:
    check_grammar(schema_grammar(schema))


def refusal(schema: Any) -> BadGrammar:
    return refusal_of(schema_grammar(schema))


def refusal_of(grammar: Grammar) -> BadGrammar:
    with pytest.raises(BadGrammar) as raised:
        check_grammar(grammar)
    return raised.value
