import re
from typing import Any

import pytest

from kvasir.engine.grammar.compiling import compile_grammar
from kvasir.grammar_bounds import BadGrammar
from runtime.grammar_bounds.refusals import schema_grammar

from .byte_vocabulary import TOKENIZER


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"type": "object", "patternProperties": {"a": {}, "b": {}}}, "patternProperties"),
        ({"type": "object", "properties": {"a": {}, "b": {}}, "maxProperties": 3}, "minProperties"),
        ({"type": "number", "maximum": 1e300}, "minimum"),
        ({"type": "string", "pattern": "b", "minLength": 1000, "maxLength": 1005}, "pattern"),
        (
            {
                "$ref": "#/$defs/a",
                "$defs": {
                    "a": {
                        "type": "object",
                        "properties": {"x": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}},
                    },
                    "b": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}},
                },
            },
            "$ref",
        ),
    ],
)
def test_an_error_names_its_keyword(schema: Any, keyword: str) -> None:
    with pytest.raises(BadGrammar, match=re.escape(keyword)) as raised:
        compile_grammar(TOKENIZER, schema_grammar(schema))
    assert raised.value.keyword == keyword


def test_a_schema_that_nothing_matches_is_refused() -> None:
    with pytest.raises(BadGrammar, match="no output can match"):
        compile_grammar(TOKENIZER, schema_grammar({"type": "array", "minItems": 2, "maxItems": 1}))
