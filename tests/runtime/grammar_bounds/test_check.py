import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvasir.grammar_bounds import adapt_grammar, check_grammar
from kvasir.grammar_bounds.limits import (
    MAX_GRAMMAR_BYTES,
    MAX_GRAMMAR_SCHEMAS,
    MAX_GRAMMAR_SCHEMAS_BYTES,
    MAX_NESTED_LEVELS,
    MAX_SCHEMA_BYTES,
    MAX_WHITESPACE_CHARACTERS,
)
from kvasir.request.constraint import Grammar, GrammarKind

from .refusals import allow, refusal, refusal_of


def nested(levels: int) -> str:
    return '{"items":' * (levels - 1) + "{}" + "}" * (levels - 1)


def long_schema(size: int) -> str:
    return '{"title":"' + "x" * (size - 12) + '"}'


LIMITS: list[tuple[Callable[[int], Any], int, str | None]] = [
    (long_schema, MAX_SCHEMA_BYTES, None),
    (nested, MAX_NESTED_LEVELS, None),
    (lambda n: {"minProperties": n, "required": ["a", "b"]}, 3, "minProperties"),
]


@pytest.mark.parametrize(("schema_of", "limit", "keyword"), LIMITS)
def test_a_schema_is_allowed_up_to_a_limit(
    schema_of: Callable[[int], Any], limit: int, keyword: str | None
) -> None:
    allow(schema_of(limit))
    error = refusal(schema_of(limit + max(2, limit // 50)))
    assert error.keyword == keyword
    assert keyword is None or keyword in str(error)


def test_a_count_that_no_output_reaches_is_dropped() -> None:
    allow({"maxItems": 2**53, "maxLength": 2**31})
    grammar = adapt_grammar(Grammar(GrammarKind.JSON_SCHEMA, '{"maxLength":9007199254740991,"maxItems":7}'))
    assert json.loads(grammar.text) == {"maxItems": 7}


def test_ten_megabytes_or_a_deep_schema_take_milliseconds() -> None:
    bombs = [
        nested(100_000),
        "[" * 10_000_000,
        '{"a":' * 2_000_000,
        long_schema(10_000_000),
        nested(900),
        "[" * 200_000,
    ]
    for bomb in bombs:
        start = time.process_time()
        assert str(refusal(bomb))
        assert time.process_time() - start < 0.2


def test_slowest_schemas_within_the_limits_take_half_a_second() -> None:
    objects = [{"type": "object", "required": ["k"], "properties": {"k": {"const": i}}} for i in range(200)]
    chain: dict[str, Any] = {"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(4_000)}}
    chain["$defs"]["d4000"] = {}
    for schema in ({"oneOf": objects}, {**chain, "$ref": "#/$defs/d0"}, {"enum": ["x" * 10] * 10_000}):
        start = time.process_time()
        allow(schema)
        assert time.process_time() - start < 0.5


@pytest.mark.parametrize(
    ("kind", "text_of", "limit"),
    [
        (GrammarKind.REGEX, lambda n: "x" * n, MAX_GRAMMAR_BYTES),
        (GrammarKind.LARK, lambda n: 'start: "' + "é" * ((n - 10) // 2) + '" ', MAX_GRAMMAR_BYTES),
        (GrammarKind.LARK, lambda n: "start: %json {}" + " | %json {}" * (n - 1), MAX_GRAMMAR_SCHEMAS),
        (GrammarKind.EBNF, lambda n: "root ::= " + " " * (n - 12) + '"a"', MAX_GRAMMAR_BYTES),
    ],
)
def test_other_grammars_are_allowed_up_to_a_limit(
    kind: GrammarKind, text_of: Callable[[int], str], limit: int
) -> None:
    check_grammar(Grammar(kind, text_of(limit)))
    assert refusal_of(Grammar(kind, text_of(limit + max(2, limit // 50)))).keyword is None


@pytest.mark.parametrize("text", ["start: " + "/\\" * 30_000, "start: " + '"\\' * 30_000])
def test_what_is_not_closed_is_refused_at_once(text: str) -> None:
    started = time.process_time()
    assert "not closed" in str(refusal_of(Grammar(GrammarKind.LARK, text)))
    assert time.process_time() - started < 1


def test_a_whitespace_pattern_matches_only_whitespace() -> None:
    for good in ("", " ", r"[ \n\t]*", r"\s*", r"[ ]?", r"( |\n {0,8})", r"[\x20\x0A\x0D\x09]{1,16}"):
        check_grammar(Grammar(GrammarKind.JSON_SCHEMA, "{}", whitespace_pattern=good))
    for bad in ("x", ".", r"\S", "[^ ]", r"\w*", " " * (MAX_WHITESPACE_CHARACTERS + 1)):
        assert "whitespace" in str(refusal_of(Grammar(GrammarKind.JSON_SCHEMA, "{}", whitespace_pattern=bad)))


def test_an_unknown_kind_is_refused() -> None:
    assert "kind" in str(refusal_of(Grammar(GrammarKind.UNKNOWN, "")))


def test_schemas_inside_of_a_grammar_are_checked() -> None:
    assert refusal_of(Grammar(GrammarKind.LARK, 'start: "<" %json {"not": {}} ">"')).keyword == "not"
    assert "read" in str(refusal_of(Grammar(GrammarKind.LARK, 'start: %json {"type": ')))
    check_grammar(Grammar(GrammarKind.LARK, 'start: "%json {" // %json {'))


@pytest.mark.parametrize(
    "options",
    [
        {"lenient": True},
        {"coerce_one_of": True},
        {"json_allowed_escapes": "u"},
        {"item_separator": ".*"},
        {"whitespace_pattern": "x"},
        {"whitespace_flexible": 1},
        [],
    ],
)
def test_a_schema_inside_of_a_grammar_chooses_only_whitespace(options: Any) -> None:
    text = json.dumps({"type": "object", "x-guidance": options})
    assert "whitespace" in str(refusal_of(Grammar(GrammarKind.LARK, f"start: %json {text}")))


def test_the_schemas_of_a_grammar_are_bounded_together() -> None:
    schema = json.dumps({"title": "x" * 250_000})
    check_grammar(Grammar(GrammarKind.LARK, f"start: a b\na: %json {schema}\nb: %json {schema}"))
    many = "".join(f"r{number}: %json {schema}\n" for number in range(3))
    assert str(MAX_GRAMMAR_SCHEMAS_BYTES) in str(refusal_of(Grammar(GrammarKind.LARK, f"start: r0 r1 r2\n{many}")))


def test_special_tokens_do_not_hide_a_schema() -> None:
    assert refusal_of(Grammar(GrammarKind.LARK, 'start: </a> %json {"not": {}} </a>')).keyword == "not"
    assert refusal_of(Grammar(GrammarKind.LARK, 'start: <[5]> %json {"not": {}} </a> /x/')).keyword == "not"
    assert (
        refusal_of(Grammar(GrammarKind.LARK, 'start: a\na: %lark {\nstart: %json {"not": {}}\n}')).keyword == "not"
    )


@pytest.mark.parametrize(
    "text", ['{"const": "<\ufdd0|user|>"}', r'{"const": "\ufdd0"}', r'{"pattern": "^\\x{FDD0}$"}']
)
def test_the_mark_of_special_tokens_is_refused(text: str) -> None:
    assert "U+FDD0" in str(refusal(text))
    allow('{"const": "0xfdd0"}')
