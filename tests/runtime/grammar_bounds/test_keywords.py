from typing import Any

import pytest

from kvasir.grammar_bounds import KEYWORDS, SupportStatus

from .refusals import allow, refusal

MALFORMED = [
    ({"type": 5}, "type"),
    ({"type": "text"}, "type"),
    ({"type": []}, "type"),
    ({"type": ["string", 5]}, "type"),
    ({"type": ["string", "text"]}, "type"),
    ({"properties": []}, "properties"),
    ({"properties": {"a": 5}}, "properties"),
    ({"patternProperties": {"a": 5}}, "patternProperties"),
    ({"required": "a"}, "required"),
    ({"required": [5]}, "required"),
    ({"additionalProperties": 5}, "additionalProperties"),
    ({"items": 5}, "items"),
    ({"items": [5]}, "items"),
    ({"prefixItems": {}}, "prefixItems"),
    ({"anyOf": {}}, "anyOf"),
    ({"anyOf": []}, "anyOf"),
    ({"allOf": [5]}, "allOf"),
    ({"enum": 5}, "enum"),
    ({"enum": []}, "enum"),
    ({"minItems": -1}, "minItems"),
    ({"minItems": 1.5}, "minItems"),
    ({"minItems": True}, "minItems"),
    ({"maxLength": "3"}, "maxLength"),
    ({"minimum": "3"}, "minimum"),
    ({"exclusiveMaximum": None}, "exclusiveMaximum"),
    ({"multipleOf": 0}, "multipleOf"),
    ({"multipleOf": -2}, "multipleOf"),
    ({"multipleOf": 0.1}, "multipleOf"),
    ({"multipleOf": 1e300}, "multipleOf"),
    ({"pattern": 5}, "pattern"),
    ({"pattern": "a\\"}, "pattern"),
    ({"format": 5}, "format"),
    ({"$ref": 5}, "$ref"),
    ({"$ref": "#/$defs/a"}, "$ref"),
    ({"$ref": "#/title", "title": "a"}, "$ref"),
    ({"$ref": "https://example.com/a"}, "$ref"),
    ({"$ref": "other.json#/a"}, "$ref"),
    ({"$schema": 5}, "$schema"),
    ({"$defs": 5, "$ref": "#/$defs"}, "$defs"),
    ({"items": {"$id": "https://example.com/a"}}, "$id"),
    ({"uniqueItems": True}, "uniqueItems"),
    ({"const": "a\x00"}, "const"),
    ({"const": {"a\x7f": 1}}, "const"),
    ({"enum": [["\x1f"]]}, "enum"),
    ({"enum": [2**53 + 1]}, "enum"),
]
REFUSED = [keyword for keyword, support in KEYWORDS.items() if support.status is SupportStatus.REFUSED]


@pytest.mark.parametrize(("schema", "keyword"), MALFORMED)
def test_a_malformed_keyword_is_refused_by_name(schema: Any, keyword: str) -> None:
    assert refusal(schema).keyword == keyword
    inside = refusal({"type": "object", "properties": {"place": schema}} | {"$defs": schema.get("$defs", {})})
    assert inside.keyword == keyword
    assert keyword in str(inside)


def test_a_refusal_names_the_place() -> None:
    error = refusal({"properties": {"a": {"items": {"anyOf": [{}, {"type": 5}]}}}})
    assert "'type' at #/properties/a/items/anyOf/1 is 5" in str(error)


@pytest.mark.parametrize("keyword", REFUSED)
def test_an_unsupported_keyword_is_refused_by_name(keyword: str) -> None:
    error = refusal({"items": {keyword: {}}})
    assert error.keyword == keyword
    assert repr(keyword) in str(error)


def test_names_and_values_are_not_taken_for_keywords() -> None:
    allow({"properties": {"not": {}, "if": {"type": "string"}}, "required": ["not"]})
    allow({"const": {"not": {}}, "enum": [{"not": 1}], "default": {"type": 5}, "examples": [{"if": 1}]})
    allow({"$defs": {"unused": {"not": {}}}})


def test_annotations_and_unknown_keywords_are_allowed() -> None:
    annotations = [name for name, support in KEYWORDS.items() if support.status is SupportStatus.ANNOTATION]
    allow({name: "x" for name in annotations if name not in ("$defs", "definitions", "$schema")})
    allow({"foo": {"not": 1}, "x-order": 3, "$schema": "https://json-schema.org/draft/2020-12/schema"})
    allow({"uniqueItems": False, "type": "integer", "format": "int64"})
    for name in ("iri", "regex", "phone", "int32", "", "date\n"):
        allow({"type": ["string", "null"], "format": name, "minLength": 2, "pattern": "^a"})


@pytest.mark.parametrize("root", [5, "a", [], None, False, "{", "", "nul", '{"a": NaN}', '"\\ud800"'])
def test_a_root_that_is_no_schema_is_refused(root: Any) -> None:
    assert "schema" in str(refusal("null" if root is None else root))


def test_references_within_the_schema_are_followed() -> None:
    allow(
        {
            "$ref": "#/$defs/a%20b",
            "$defs": {"a b": {"$ref": "#/$defs/c~1d"}, "c/d": {"$ref": "#e"}, "e": {"$anchor": "e"}},
        }
    )
    assert refusal({"$ref": "#/x/0", "x": [{"not": {}}]}).keyword == "not"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}]},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [{}, {"$ref": "#"}], "minItems": 2},
    ],
)
def test_recursion_without_an_end_is_refused(schema: Any) -> None:
    assert refusal(schema).keyword == "$ref"


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "array", "prefixItems": [{}, {"$ref": "#"}], "minItems": 1},
        {"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}}},
    ],
)
def test_recursion_with_an_end_is_allowed(schema: Any) -> None:
    allow(schema)
