"""What the check writes into a schema, so that all validators agree with llguidance."""

import itertools
import json
import math
import re
import time
from typing import Any

import pytest

from kvasir.grammar_bounds.disjoint import Disjointness
from kvasir.grammar_bounds.formats import FORMAT_PATTERNS
from kvasir.grammar_bounds.patterns import translated_pattern
from kvasir.grammar_bounds.schema import adapt_schema


def adapted(schema: Any) -> Any:
    return json.loads(adapt_schema(json.dumps(schema)))


@pytest.mark.parametrize("bound", [1, 3.5, 1e6, -1, -0.001, 0.1 + 0.2, 999999.9999999999, 2**60])
def test_an_exclusive_bound_leaves_room_for_rounding(bound: float) -> None:
    highest = adapted({"type": "number", "exclusiveMaximum": bound})["maximum"]
    lowest = adapted({"type": "number", "exclusiveMinimum": bound})["minimum"]
    assert highest < bound < lowest
    assert math.isclose(highest, lowest, rel_tol=1e-12)


def test_more_than_zero_is_a_small_number() -> None:
    assert adapted({"exclusiveMinimum": 0})["minimum"] == 1e-15
    assert adapted({"minimum": 0, "exclusiveMinimum": True})["minimum"] == 1e-15
    assert adapted({"type": "integer", "exclusiveMinimum": 0}) == {"type": "integer", "exclusiveMinimum": 0}


def test_integer_bounds_that_are_not_exact_move_inwards() -> None:
    assert adapted({"type": "integer", "maximum": 2**63 - 1})["maximum"] == 2**63 - 1024
    assert adapted({"type": "integer", "minimum": 2**53 + 1})["minimum"] == 2**53 + 2
    assert adapted({"type": "integer", "minimum": -5, "maximum": 2**53})["maximum"] == 2**53


def test_a_count_may_be_written_with_a_fraction_of_zero() -> None:
    assert adapted({"minItems": 2.0, "maxLength": 3.0}) == {"minItems": 2, "maxLength": 3}


def test_property_order_is_kept() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}, "required": ["a", "z"]}
    assert list(adapted(schema)["properties"]) == ["z", "a"]


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (r"^\d$", "1", "٣"),
        (r"^\w$", "a", "é"),
        (r"^[^\w]$", "-", "é"),
        (r"^\W$", "-", "é"),
        (r"^\D$", "-", "٣"),
        (r"^[^\d]$", "-", "٣"),
        (r"^\s$", " ", "\x85"),
        (r"^\S$", "a", "\x85"),
        (r"^.$", "a", "\r"),
    ],
)
def test_classes_match_what_all_dialects_agree_on(pattern: str, matching: str, other: str) -> None:
    translated = translated_pattern(pattern).replace(r"\x{", r"\u{")
    for rust, python in {
        r"\u{85}": r"\x85",
        r"\u{FEFF}": r"\ufeff",
        r"\u{2028}": r"\u2028",
        r"\u{2029}": r"\u2029",
    }.items():
        translated = translated.replace(rust, python)
    if r"\p" not in translated:  # `re` has no classes of Unicode; test_outputs.py tests these with llguidance
        assert re.search(translated, matching)
        assert not re.search(translated, other)


@pytest.mark.parametrize(
    "pattern",
    [
        "a(?=b)",
        "(?!a)",
        "(?<=a)b",
        r"(a)\1",
        r"(?<n>a)\k<n>",
        r"\bfoo",
        r"\Aa",
        r"a\Z",
        "(?s).",
        "(?x)a",
        r"\x{41}",
        "a\x01",
        r"\x01",
        r"[\x01]",
        r"\u0001",
        r"\cA",
        r"\0",
        r"\v",
        "\x7f",
    ],
)
def test_a_pattern_without_a_translation_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"regular expressions?"):
        translated_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "translated"),
    [
        (r"^[a-z]+\.(?:x|y){2,3}?$", r"^[a-z]+\.(?:x|y){2,3}?$"),
        (r"[^\x00-\x1f]", r"[^\x00-\x1f]"),
        (r"[ -\x7f]", r"[ -\x7f]"),
        ("[a&&b[]", r"[a\&\&b\[]"),
        ("(?i)a", "(?i)a"),
    ],
)
def test_what_dialects_agree_on_is_kept(pattern: str, translated: str) -> None:
    assert translated_pattern(pattern) == translated


def test_dates_and_times_exist() -> None:
    for name, good, bad in (
        (
            "date",
            ["2024-02-29", "2000-02-29", "0001-01-01", "1999-12-31"],
            ["2023-02-29", "1900-02-29", "0000-01-01"],
        ),
        ("time", ["23:59:59Z", "00:00:00.5+23:59"], ["23:59:60Z", "24:00:00Z", "10:00:00", "10:00:00z"]),
        ("date-time", ["2024-02-29T00:00:00Z"], ["2024-02-29", "2024-02-29 00:00:00Z", "2024-04-31T00:00:00Z"]),
    ):
        assert all(re.fullmatch(FORMAT_PATTERNS[name], text) for text in good)
        assert not any(re.fullmatch(FORMAT_PATTERNS[name], text) for text in bad)


def kind(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": {"const": value}}, "required": ["kind"], **more}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"type": "string"}, {"type": ["null", "integer"]}),
        ({"const": 1}, {"enum": [2, "1"]}),
        ({"const": True}, {"const": 1}),
        ({"type": "string"}, {"const": 1}),
        (kind("a"), kind("b")),
        ({"$ref": "#/a"}, {"$ref": "#/b"}),
        ({"type": "object", "required": ["x"]}, kind("a", additionalProperties=False)),
        (False, {}),
    ],
)
def test_branches_that_cannot_overlap(first: Any, second: Any) -> None:
    definitions = {"#/a": kind("a"), "#/b": kind("b")}
    assert Disjointness(definitions.__getitem__).is_certain(first, second)
    assert Disjointness(definitions.__getitem__).is_certain(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        ({"type": "integer"}, {"type": "number"}),
        ({"const": 1}, {"const": 1.0}),
        (kind("a"), kind("a")),
        (kind("a"), {"properties": {"kind": {"const": "b"}}, "type": "object"}),
        ({**kind("a"), "type": ["object", "null"]}, {**kind("b"), "type": ["object", "null"]}),
        ({"$ref": "#/a"}, kind("a")),
        ({"$ref": "#/loop"}, {"type": "null"}),
    ],
)
def test_branches_that_may_overlap(first: Any, second: Any) -> None:
    definitions = {"#/a": kind("a"), "#/loop": {"$ref": "#/loop"}}
    assert not Disjointness(definitions.__getitem__).is_certain(first, second)


def test_the_comparison_of_branches_is_bounded() -> None:
    names = [f"p{index}" for index in range(600)]
    many = {"type": "object", "required": names, "properties": {name: {"$ref": "#/$defs/many"} for name in names}}
    branches = [
        {
            "type": "object",
            "required": ["many", "type"],
            "properties": {"many": {"$ref": "#/$defs/many"}, "type": {"$ref": index}},
        }
        for index in range(100)
    ]
    definitions: dict[Any, Any] = {"#/$defs/many": many, **{index: {"const": index} for index in range(100)}}
    disjointness = Disjointness(definitions.__getitem__)
    started = time.process_time()
    assert not all(itertools.starmap(disjointness.is_certain, itertools.combinations(branches, 2)))
    assert not disjointness.is_certain({"type": "string"}, {"type": "null"}), "the effort was not used up"
    assert time.process_time() - started < 5


def test_one_of_without_overlap_becomes_any_of() -> None:
    schema = {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": kind("a")}}
    assert list(adapted(schema)) == ["anyOf", "$defs"]
    assert list(adapted({"oneOf": [{"type": "integer"}, {"type": "number"}]})) == ["oneOf"]
