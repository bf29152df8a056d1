import json
from typing import Any

import pytest

from kvasir.client.input.grammar_source import GrammarSource
from kvasir.client.input.structural_tags import MAX_DEPTH, MAX_FORMATS, MAX_TEXT_CHARACTERS
from kvasir.client.input.tag_fields import MAX_REPEAT
from kvasir.client.request_errors import InvalidRequest
from runtime.structured_output.guided import Guided

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
JSON = {"type": "json_schema", "json_schema": SCHEMA}
ANY = {"type": "any_text"}


def const(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def tag(begin: str = "<t>", content: Any = JSON, end: Any = "</t>") -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def triggered(**more: Any) -> dict[str, Any]:
    tags = [tag("<f=a>", JSON, "</f>"), tag("<f=b>", ANY, ["</f>", "</g>"]), tag("[X]", JSON, "[/X]")]
    return {"type": "triggered_tags", "triggers": ["<f=", "[X"], "tags": tags, **more}


def guided(format: dict[str, Any]) -> Guided:
    return Guided.of("structural_tag", {"type": "structural_tag", "format": format})


def taken(format: dict[str, Any], *texts: str) -> list[str]:
    grammar = guided(format)
    return [text for text in texts if grammar.takes(text)]


def refusal(tag: Any) -> str:
    with pytest.raises(InvalidRequest) as error:
        GrammarSource("structural_tag", tag, "response_format").grammar()
    assert error.value.param == "response_format"
    return str(error.value)


def format_refusal(format: Any) -> str:
    return refusal({"format": format})


FREE, ONE, MANY = "", '<f=a>{"a":1}</f>', '<f=a>{"a":1}</f>x<f=b>y</g>[X]{"a":2}[/X]'


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, [FREE, "hi <f", ONE, f"hi {ONE}", MANY, f"{ONE} bye"]),
        ({"at_least_one": True}, [ONE, MANY, f"{ONE} bye"]),
        ({"stop_after_first": True}, [FREE, "hi <f", ONE, f"hi {ONE}"]),
        ({"at_least_one": True, "stop_after_first": True}, [ONE]),
    ],
)
def test_triggered_tags_stand_in_free_text(flags: dict[str, bool], expected: list[str]) -> None:
    texts = [FREE, "hi <f", ONE, f"hi {ONE}", MANY, f"{ONE} bye", "<f=c>", '<f=a>{"b":1}</f>', "[X", '[X]{"a":1}']
    assert taken(triggered(**flags), *texts) == expected


def test_the_older_form_has_structures_and_triggers() -> None:
    older = {
        "type": "structural_tag",
        "structures": [{"begin": "<f=a>", "schema": SCHEMA, "end": "</f>"}],
        "triggers": ["<f="],
    }
    for form in (older, json.dumps(older)):
        grammar = Guided.of("structural_tag", form)
        assert grammar.takes(f"hi {ONE} bye")
        assert not grammar.takes("hi <f=b>")


def test_free_text_in_a_tag_ends_at_the_first_end() -> None:
    format = {"type": "sequence", "elements": [tag("<think>", ANY, "</think>"), JSON]}
    assert taken(format, '<think>a<b\n</think>{"a":1}', '<think></think>x</think>{"a":1}', "<think>") == [
        '<think>a<b\n</think>{"a":1}'
    ]


def test_texts_and_regexes_in_a_row_match_exactly() -> None:
    elements = [const("a"), {"type": "regex", "pattern": r"[a-z/]+[0-9]"}, const("b7"), ANY]
    texts = ["axb/1b7", "axb/1b7 and\nmore", "ab7", "a1b7", "axb/1b"]
    assert taken({"type": "sequence", "elements": elements}, *texts) == texts[:2]
    assert taken(tag(content={"type": "regex", "pattern": "[a-z<>/]*"}), "<t></t></t>", "<t>") == ["<t></t></t>"]


def test_parts_may_be_alternatives_or_repeated() -> None:
    either = {"type": "or", "elements": [JSON, const(";")]}
    texts = ["", ";", '{"a":1}', '{"a":1};', ";;;"]
    assert taken(either, *texts) == texts[1:3]
    assert taken({"type": "optional", "content": either}, *texts) == texts[:3]
    assert taken({"type": "star", "content": either}, *texts) == texts
    assert taken({"type": "plus", "content": either}, *texts) == texts[1:]
    assert taken({"type": "repeat", "min": 1, "max": 2, "content": either}, *texts) == texts[1:4]
    assert taken({"type": "repeat", "min": 2, "max": -1, "content": either}, *texts) == texts[3:]


def test_tags_may_be_separated() -> None:
    one = '<t>{"a":1}</t>'
    texts = ["", one, f"{one}, {one}", f"{one},{one}", f"{one}, "]
    format = {"type": "tags_with_separator", "tags": [tag()], "separator": ", "}
    assert taken(format, *texts) == texts[:3]
    assert taken(format | {"at_least_one": True}, *texts) == texts[1:3]
    assert taken(format | {"at_least_one": True, "stop_after_first": True}, *texts) == texts[1:2]


def test_texts_may_hold_what_means_something_to_lark() -> None:
    strange = '"\\/\n<|x|> %json # // é😀\x7f'
    format = {"type": "sequence", "elements": [tag(strange, JSON, strange), const(strange)]}
    assert guided(format).takes(f'{strange}{{"a":1}}{strange}{strange}')


def test_options_for_whitespace_hold_in_tags() -> None:
    value = {"format": tag()}
    default = Guided.of("structural_tag", value)
    spaced = Guided.of("structural_tag", value, any_whitespace=False)
    texts = ['<t>{"a": 1}</t>', '<t>{"a":1}</t>', '<t>{\n"a":1}</t>', '<t>{\n\n\n\n"a":1}</t>']
    assert [default.takes(text) for text in texts] == [True, True, True, False]
    assert [spaced.takes(text) for text in texts] == [True, False, False, False]


@pytest.mark.parametrize(
    ("format", "named"),
    [
        (None, "format"),
        ({"type": "token", "token": 3}, "format.type"),
        ({"type": "json_schema", "json_schema": SCHEMA, "style": "qwen_xml"}, "format.style"),
        ({"type": "json_schema"}, "format.json_schema"),
        ({"type": "any_text", "max_chars": 5}, "format.max_chars"),
        ({"type": "any_text", "max_tokens": 0}, "format.max_tokens"),
        ({"type": "sequence", "elements": []}, "format.elements"),
        ({"type": "sequence", "elements": [ANY, JSON]}, "any_text"),
        ({"type": "star", "content": triggered()}, "any_text"),
        (tag(content=triggered()), "any_text"),
        (tag(content={"type": "nope"}), "format.content.type"),
        (tag(end=[]), "format.end"),
        (triggered(triggers=[]), "format.triggers"),
        (triggered(triggers=["<f=", "<f=a", "[X"]), "format.tags[0].begin"),
        (triggered(triggers=["<f="]), "format.tags[2].begin"),
        (triggered(tags=[]), "format.tags"),
        (triggered(at_least_one="yes"), "format.at_least_one"),
        ({"type": "repeat", "min": 2, "max": 1, "content": JSON}, "format.min"),
        ({"type": "repeat", "min": 0, "max": MAX_REPEAT + 1, "content": JSON}, "format.max"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_path(format: Any, named: str) -> None:
    assert named in format_refusal(format)


def test_the_schema_of_a_tag_is_refused_by_its_keyword() -> None:
    assert "not" in format_refusal(tag(content={"type": "json_schema", "json_schema": {"not": {}}}))


def test_both_forms_at_once_are_refused() -> None:
    assert "not both" in refusal({"structures": [], "format": ANY})
    assert "format" in refusal({})
    assert "type" in refusal({"type": "json"})


def test_formats_are_bounded() -> None:
    most = {"type": "or", "elements": [const(str(number)) for number in range(MAX_FORMATS - 1)]}
    assert guided(most).takes("7")
    assert str(MAX_FORMATS) in format_refusal({"type": "or", "elements": [*most["elements"], const("x")]})
    deep: dict[str, Any] = const("x")
    for _ in range(MAX_DEPTH):
        deep = {"type": "optional", "content": deep}
    assert guided(deep).takes("x")
    assert str(MAX_DEPTH) in format_refusal({"type": "optional", "content": deep})


def test_texts_are_bounded() -> None:
    assert "characters" in format_refusal(const("x" * (MAX_TEXT_CHARACTERS + 1)))
    assert "surrogate" in format_refusal(const("\ud800"))
