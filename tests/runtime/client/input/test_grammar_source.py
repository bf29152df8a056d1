"""From the forms of a constraint to grammars: their outputs, and the bounds."""

import json
from typing import Any

import pytest

from kvasir.client.input.grammar_source import (
    INLINE_COST,
    MAX_CHOICES,
    GrammarSource,
    is_ebnf,
)
from kvasir.client.input.lark_literals import choice_lark
from kvasir.client.input.schemas import MAX_SOURCE_BYTES, schema_text
from kvasir.client.request_errors import InvalidRequest
from kvasir.grammar_bounds.limits import MAX_GRAMMAR_BYTES
from kvasir.request.constraint import Grammar, GrammarKind
from runtime.structured_output.guided import Guided

POINT: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}


def grammar(form: str, value: object, **options: object) -> Grammar:
    return GrammarSource(form, value, "field", **options).grammar()  # type: ignore[arg-type]


def refusal(form: str, value: object, **options: object) -> str:
    with pytest.raises(InvalidRequest) as error:
        grammar(form, value, **options)
    assert error.value.param == "field"
    assert str(error.value).startswith("field")
    return str(error.value)


@pytest.mark.parametrize(
    "choice",
    [
        "",
        "a",
        "ab",
        '"quoted"\\',
        "a\nb\r\t",
        "\x00\x1f\x7f",
        "é😀𝒳\u2028\x85",
        "</s>",
        "<[3]>",
        "/x/",
        "%json {}",
        "#//",
    ],
)
def test_a_choice_may_be_any_text(choice: str) -> None:
    guided = Guided.of("choice", [choice, "other", "a\\"])
    for text in (choice, "other", "a\\"):
        assert guided.takes(text)
    for text in (choice + "x", "othe", "A"):
        assert not guided.takes(text)


def test_the_most_choices_are_taken_and_one_more_refused() -> None:
    choices = [f"{number:010}" for number in range(MAX_CHOICES)]
    guided = Guided.of("choice", choices)
    assert guided.takes(choices[-1])
    assert not guided.takes(f"{MAX_CHOICES:010}")
    assert str(MAX_CHOICES) in refusal("choice", [*choices, "x"])


def test_the_size_of_all_choices_is_bounded() -> None:
    around = len(choice_lark([""]).encode())
    assert grammar("choice", ["x" * (MAX_GRAMMAR_BYTES - around)]).kind is GrammarKind.LARK
    assert str(MAX_GRAMMAR_BYTES) in refusal("choice", ["x" * (MAX_GRAMMAR_BYTES - around + 1)])
    assert str(MAX_GRAMMAR_BYTES) in refusal("choice", ["ä" * (MAX_GRAMMAR_BYTES // 2)])


def test_no_choices_are_refused() -> None:
    assert "empty" in refusal("choice", [])


@pytest.mark.parametrize("form", ["choice", "regex", "grammar"])
def test_half_a_surrogate_pair_is_refused(form: str) -> None:
    text = "a\ud800"
    assert "surrogate" in refusal(form, [text] if form == "choice" else text)


def test_a_schema_may_be_an_object_or_its_text() -> None:
    assert grammar("json", POINT) == grammar("json", json.dumps(POINT, indent=3))


@pytest.mark.parametrize("text", ["", "{", "[]", "true", '"x"', "{'a': 1}"])
def test_a_text_that_is_no_object_is_refused(text: str) -> None:
    refusal("json", text)


def test_a_text_of_megabytes_is_refused_before_it_is_parsed() -> None:
    assert str(MAX_SOURCE_BYTES) in refusal("json", "[" * (MAX_SOURCE_BYTES + 1))
    assert str(MAX_SOURCE_BYTES) in refusal("json", {"title": "x" * MAX_SOURCE_BYTES})


def test_a_schema_nested_deeper_than_json_is_written_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(400):
        schema = {"items": schema}
    assert "nested" in refusal("json", schema)


def test_further_properties_can_be_forbidden() -> None:
    schema = {"type": "object", "properties": {"a": {"properties": {"properties": {"type": "integer"}}}}}
    closed = json.loads(schema_text(schema, additional_properties=False))
    assert closed["additionalProperties"] is False
    assert closed["properties"]["a"]["additionalProperties"] is False
    assert "additionalProperties" not in closed["properties"]
    assert "additionalProperties" not in schema
    explicit = {"properties": {}, "additionalProperties": {"type": "null"}}
    assert json.loads(schema_text(explicit, additional_properties=False)) == explicit


def test_whitespace_is_as_requested() -> None:
    spaced, dense, broad = '{"x": 1, "y": 2}', '{"x":1,"y":2}', '{\n  "x" : 1,"y":2 }'
    default, none = Guided.of("json", POINT), Guided.of("json", POINT, any_whitespace=False)
    pattern = Guided.of("json", POINT, whitespace_pattern="[ ]?")
    assert [default.takes(text) for text in (spaced, dense, broad)] == [True, True, True]
    assert [none.takes(text) for text in (spaced, dense, broad)] == [True, False, False]
    assert [pattern.takes(text) for text in (spaced, dense, broad)] == [True, True, False]


@pytest.mark.parametrize("pattern", ["", " ", r"[ \n\t]*", r"\s{0,4}", "( |\n)?", "[ \n]{1,20}"])
def test_patterns_for_whitespace_are_taken(pattern: str) -> None:
    assert grammar("json", POINT, whitespace_pattern=pattern).whitespace_pattern == pattern


@pytest.mark.parametrize("pattern", ["x", ".", "[^a]", r"\w", r"\S", "[ a]", "1"])
def test_patterns_for_more_than_whitespace_are_refused(pattern: str) -> None:
    assert "whitespace" in refusal("json", POINT, whitespace_pattern=pattern)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('root ::= "a"', True),
        ('start: "a"', False),
        ('# root ::= x\nstart: "a"', False),
        ('// root ::= x\nstart: "a"', False),
        ('%llguidance {}\nstart: "a"', False),
        ('\n\n  root\n ::= "a"', True),
    ],
)
def test_ebnf_is_told_from_lark_by_its_rules(text: str, expected: bool) -> None:
    assert is_ebnf(text) is expected


@pytest.mark.parametrize("text", ['root ::= "a" | [0-9]+', 'start: "a" | /[0-9]+/'])
def test_a_grammar_in_either_language_is_enforced(text: str) -> None:
    guided = Guided.of("grammar", text)
    assert [guided.takes(output) for output in ("a", "123", "b", "a1")] == [True, True, False, False]


def is_small(value: object) -> bool:
    return GrammarSource("json", value, "field").is_small


def test_large_sources_are_made_in_a_thread() -> None:
    assert is_small(POINT)
    assert is_small("x" * (INLINE_COST - 16))
    assert not is_small("x" * (INLINE_COST - 15))
    assert not is_small({"properties": {"x" * INLINE_COST: {}}})
    assert not is_small({"enum": list(range(INLINE_COST // 16))})
    assert not is_small({"enum": [0] * (10 * INLINE_COST)})
    assert not is_small({str(number): 0 for number in range(10 * INLINE_COST)})
    deep: object = 0
    for _ in range(100_000):
        deep = [deep]
    assert not is_small(deep)
    assert not is_small([["x" * 100] * 100])
