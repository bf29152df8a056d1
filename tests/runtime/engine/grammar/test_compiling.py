import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders

from kvasir.engine.grammar.compiling import compile_grammar, probe
from kvasir.engine.grammar.vocabulary import build_tokenizer, read_vocabulary
from kvasir.grammar_bounds import KEYWORDS, BadGrammar, SupportStatus
from kvasir.hub.source import fetch
from kvasir.request.constraint import Grammar, GrammarKind, OutputConstraint
from runtime.grammar_bounds.refusals import schema_grammar
from runtime.hub import small_tokenizers as small

from .byte_vocabulary import TOKENIZER, accepts, allowed, guide_for

VIOLATED: list[tuple[dict[str, Any], str]] = [
    ({"type": "integer"}, "1.5"),
    ({"enum": [1, "a"]}, "2"),
    ({"const": {"a": 1}}, '{"a": 2}'),
    ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a": "x"}'),
    ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"\\u0061": "x"}'),
    ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, '{"b": 1}'),
    ({"type": "object", "additionalProperties": {"type": "null"}}, '{"b": 1}'),
    ({"type": "object", "patternProperties": {"^a": {"type": "integer"}}}, '{"ab": "x"}'),
    ({"type": "object", "patternProperties": {"^a": {"type": "integer"}}}, '{"\\u0061b": "x"}'),
    ({"type": "object", "required": ["a"]}, '{"b": 1}'),
    ({"type": "object", "minProperties": 1}, "{}"),
    ({"type": "object", "maxProperties": 1}, '{"a": 1, "b": 2}'),
    ({"type": "array", "items": {"type": "null"}}, "[1]"),
    ({"type": "array", "prefixItems": [{"type": "null"}]}, "[1]"),
    ({"type": "array", "items": [{"type": "null"}], "additionalItems": False}, "[null, 1]"),
    ({"type": "array", "minItems": 2}, "[1]"),
    ({"type": "array", "maxItems": 1}, "[1, 2]"),
    ({"type": "string", "minLength": 2}, '"a"'),
    ({"type": "string", "maxLength": 1}, '"ab"'),
    ({"type": "string", "pattern": "^a"}, '"ba"'),
    ({"type": "string", "format": "date"}, '"2023-02-29"'),
    ({"type": "string", "format": "ipv4"}, '"1.2.3.256"'),
    ({"type": "number", "minimum": 2}, "1"),
    ({"type": "number", "maximum": 2}, "2.1"),
    ({"type": "number", "exclusiveMinimum": 2}, "2"),
    ({"type": "number", "exclusiveMaximum": 2}, "2"),
    ({"type": "number", "exclusiveMaximum": 1}, "0.99999999999999999999"),
    ({"type": "integer", "multipleOf": 7}, "8"),
    ({"anyOf": [{"type": "null"}, {"const": 1}]}, "2"),
    ({"oneOf": [{"type": "null"}, {"const": 1}]}, "2"),
    ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "1"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, "1"),
]


@pytest.mark.parametrize(("schema", "instance"), VIOLATED)
def test_a_keyword_is_enforced(schema: dict[str, Any], instance: str) -> None:
    assert not accepts(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)), instance)


def test_each_enforced_keyword_has_a_test() -> None:
    tested = {keyword for schema, _ in VIOLATED for keyword in schema}
    enforced = {name for name, support in KEYWORDS.items() if support.status is SupportStatus.ENFORCED}
    limited = {name for name, support in KEYWORDS.items() if support.status is SupportStatus.LIMITED}
    assert enforced <= tested
    assert limited - {"$id", "uniqueItems"} <= tested


@pytest.mark.parametrize(
    ("schema", "instance"),
    [
        ({"type": "string", "pattern": r"^\W$"}, "é"),
        ({"type": "string", "pattern": r"^\D$"}, "٣"),
        ({"type": "string", "pattern": r"^[^\s]$"}, "\u0085"),
        ({"type": "string", "pattern": r"^[^\w]$"}, "é"),
        ({"type": "string", "pattern": "^.$"}, "\u2028"),
    ],
)
def test_what_dialects_disagree_on_is_not_written(schema: dict[str, Any], instance: str) -> None:
    assert not accepts(
        Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)), json.dumps(instance, ensure_ascii=False)
    )


@pytest.mark.parametrize(
    ("kind", "text", "matching", "other"),
    [
        (GrammarKind.REGEX, r"(ab)+c?", "ababc", "aba"),
        (GrammarKind.REGEX, r"x", "x", "xx"),
        (GrammarKind.LARK, 'start: a*\na: "x" | "y"', "xyx", "z"),
        (GrammarKind.LARK, 'start: start "x" | "x"', "xxx", "y"),
        (GrammarKind.LARK, 'start: "<" %json {"type": "integer"} ">"', "<12>", "<1.5>"),
        (GrammarKind.EBNF, 'root ::= "a" digit+\ndigit ::= [0-9]', "a12", "a"),
        (GrammarKind.EBNF, 'root ::= item ("," item)*\nitem ::= [a-z]{2,3}', "ab,cde", "a"),
        (GrammarKind.EBNF, 'root ::= root "x" | "y"', "yxx", "x"),
        (GrammarKind.EBNF, r'root ::= "\u00e9\U0001F600\u0041" [\u00e0-\u00ff]', "é😀Aé", "e"),
        (GrammarKind.EBNF, r'root ::= "\\u0041"', r"\u0041", "A"),
        (GrammarKind.JSON_SCHEMA, "true", '{"a": [1]}', "x"),
    ],
)
def test_a_grammar_matches_whole_texts(kind: GrammarKind, text: str, matching: str, other: str) -> None:
    grammar = Grammar(kind, text)
    assert accepts(grammar, matching)
    assert not accepts(grammar, other)


def test_whitespace_is_as_the_grammar_says() -> None:
    text = '{"type": "object"}'
    pretty, compact, plain = '{\n  "a": 1,\n  "b": 2\n}', '{"a":1,"b":2}', '{"a": 1, "b": 2}'
    endless = '{"a":' + "\n" * 3 + "1}"
    default = Grammar(GrammarKind.JSON_SCHEMA, text)
    assert [accepts(default, it) for it in (pretty, compact, plain, endless)] == [True, True, True, False]
    strict = Grammar(GrammarKind.JSON_SCHEMA, text, any_whitespace=False)
    assert [accepts(strict, it) for it in (pretty, compact, plain, endless)] == [False, False, True, False]
    chosen = Grammar(GrammarKind.JSON_SCHEMA, text, whitespace_pattern=r"\s{0,3}")
    assert [accepts(chosen, it) for it in (pretty, compact, plain, endless)] == [True, True, True, True]
    assert not accepts(Grammar(GrammarKind.JSON_SCHEMA, text, whitespace_pattern=r"\s*"), '{"a":\u00a01}')


def test_whitespace_of_a_schema_inside_of_a_grammar() -> None:
    compact, plain, endless = '<{"a":1,"b":2}', '<{"a": 1, "b": 2}', '<{"a":\n\n1}'
    text, own = 'start: "<" %json {"type": "object"}', 'start: "<" %json {"type": "object", "x-guidance": OWN}'
    default = Grammar(GrammarKind.LARK, text)
    strict = Grammar(GrammarKind.LARK, text, any_whitespace=False)
    own_strict = own.replace("OWN", '{"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "}')
    own_flexible = own.replace("OWN", '{"whitespace_flexible": true, "item_separator": ",", "key_separator": ":"}')
    for grammar, expected in (
        (default, [True, True, False]),
        (strict, [False, True, False]),
        (Grammar(GrammarKind.LARK, own_strict), [False, True, False]),
        (Grammar(GrammarKind.LARK, own_flexible), [True, True, False]),
        (Grammar(GrammarKind.LARK, own_flexible, any_whitespace=False), [True, True, False]),
        (Grammar(GrammarKind.LARK, text, whitespace_pattern=r"\s*"), [True, True, True]),
    ):
        assert [accepts(grammar, it) for it in (compact, plain, endless)] == expected
        assert not accepts(grammar, '<{"\\u0061": 1}')


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar(GrammarKind.REGEX, "("), "unclosed group"),
        (Grammar(GrammarKind.LARK, "start: missing"), "missing"),
        (Grammar(GrammarKind.LARK, "start: start"), "matches no text"),
        (Grammar(GrammarKind.EBNF, 'a ::= "x"'), "root"),
        (Grammar(GrammarKind.EBNF, "root ::= ("), "EBNF"),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"oneOf": [{"type": "integer"}, {"type": "number"}]}'), "anyOf"),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"type": "array", "minItems": 2, "maxItems": 1}'), "minItems"),
    ],
)
def test_a_grammar_that_does_not_compile_is_refused(grammar: Grammar, message: str) -> None:
    with pytest.raises(BadGrammar, match=message) as raised:
        compile_grammar(TOKENIZER, grammar)
    assert "<state>" not in str(raised.value)
    assert "\n" not in str(raised.value)


HIDDEN = {
    "endless": Grammar(GrammarKind.LARK, 'start: "!" | "~" y\ny: "' + "a" * 200 + '" y'),
    "with options of its own": Grammar(
        GrammarKind.LARK, '%llguidance {"no_forcing": false}\nstart: "!" | "~" y\ny: "' + "a" * 200 + '" y'
    ),
    "counted": Grammar(GrammarKind.LARK, 'start: "!" | "~" x{500}\nx: "' + "a" * 10_000 + '"'),
    "EBNF": Grammar(GrammarKind.EBNF, 'root ::= "!" | "~" y\ny ::= "' + "a" * 200 + '" y'),
    "compact JSON": Grammar(
        GrammarKind.JSON_SCHEMA,
        json.dumps(
            {"anyOf": [{"const": "~~"}, {"items": {"const": "a" * 1000}, "minItems": 5000, "type": "array"}]}
        ),
        any_whitespace=False,
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_long_text_behind_a_choice_is_not_computed_at_once(name: str) -> None:
    guide = guide_for(OutputConstraint(HIDDEN[name]))
    guide.accept(list(b"[" if "JSON" in name else b"~"))
    before = Path("/proc/self/statm").read_text().split()[1]
    for _ in range(50):
        assert not guide.forced_tokens()
        guide.accept(allowed(guide)[:1])
    grown = (int(Path("/proc/self/statm").read_text().split()[1]) - int(before)) * 4096
    assert grown < 50 << 20


def test_a_short_text_is_forced() -> None:
    guide = guide_for(OutputConstraint(schema_grammar({"const": "short"})))
    assert bytes(guide.forced_tokens()) == b'"short"'


def _unigram_of_bytes() -> tokenizers.Tokenizer:
    made = small.unigram()
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return made


@pytest.mark.parametrize("make", [small.byte_level, small.added_tokens, _unigram_of_bytes])
def test_a_grammar_in_lark_may_name_special_tokens(
    tmp_path: Path, make: Callable[[], tokenizers.Tokenizer]
) -> None:
    made = make()
    tokenizer = build_tokenizer(read_vocabulary(small.save(tmp_path, made, {}), made.get_vocab_size(), [1]))
    for token, described in made.get_added_tokens_decoder().items():
        if described.special:
            for written in (described.content, f"<[{token}]>"):
                matcher = compile_grammar(tokenizer, Grammar(GrammarKind.LARK, f"start: {written}"))
                assert matcher.consume_tokens([token, 1])


@pytest.mark.parametrize("part", [0, 1, None])
def test_a_special_token_may_be_part_of_a_merge(tmp_path: Path, part: int | None) -> None:
    """`part`: 0 and 1 are merged, None is the result."""
    made = small.byte_level()
    merged: list[str] = json.loads(made.to_str())["model"]["merges"][0]
    made.add_special_tokens(["".join(merged) if part is None else merged[part]])
    tokenizer = build_tokenizer(read_vocabulary(small.save(tmp_path, made, {}), made.get_vocab_size(), [1]))
    matcher = compile_grammar(tokenizer, Grammar(GrammarKind.REGEX, "[a-z ]+"))
    assert matcher.consume_tokens(made.encode("the").ids[1:])


def test_an_unknown_special_token_is_named_as_the_grammar_has_it() -> None:
    with pytest.raises(BadGrammar, match="<no-such-token>") as raised:
        compile_grammar(TOKENIZER, Grammar(GrammarKind.LARK, "start: <no-such-token>"))
    assert "fdd0" not in str(raised.value).lower()
    assert "\ufdd0" not in str(raised.value)


def _refusal_after(grammar: Grammar, seed: int) -> str:
    demo = build_tokenizer(read_vocabulary(fetch("demo://", weights=False), 2048, [0]))
    try:
        probe(demo, compile_grammar(demo, grammar), seed)
    except BadGrammar as error:
        return str(error)
    return ""


def test_too_many_optional_properties_are_refused_by_the_trial() -> None:
    optional = schema_grammar({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(600)}})
    assert all("too much work after some tokens" in _refusal_after(optional, seed) for seed in range(3))


@pytest.mark.parametrize("grammar", [schema_grammar({"type": "object"}), Grammar(GrammarKind.REGEX, "a?")])
def test_a_simple_grammar_is_not_too_much_work(grammar: Grammar) -> None:
    assert not any(_refusal_after(grammar, seed) for seed in range(10))


def test_the_refusal_of_an_ebnf_grammar_is_short() -> None:
    with pytest.raises(BadGrammar, match="cannot be read") as raised:
        compile_grammar(TOKENIZER, Grammar(GrammarKind.EBNF, "root ::= " + "x" * 50_000))
    assert len(str(raised.value)) < 400
