from typing import Any

import pytest

from kvasir.grammar_bounds import adapt_grammar
from kvasir.grammar_bounds.forced_text import LONGEST_FORCED_TEXT, may_force
from kvasir.request.constraint import Grammar, GrammarKind
from runtime.grammar_bounds.refusals import refusal_of, schema_grammar

CALL = '"<tool_call>" "{\\"name\\": \\"search\\", \\"arguments\\": " arguments "}" "</tool_call>"'
NAMES = {
    "type": "object",
    "properties": {"name": {"const": "a"}},
    "required": ["name"],
    "additionalProperties": False,
}
_NAMES = [f"k{number}" for number in range(10)]
OPEN_OBJECTS: dict[str, Any] = {"const": "x"}
for _ in range(3):  # ten names in each object, none of them with a schema of its own
    OPEN_OBJECTS = {
        "type": "object",
        "required": _NAMES,
        "additionalProperties": OPEN_OBJECTS,
        "properties": {},
        "maxProperties": 10,
    }
LONG = "x" * (LONGEST_FORCED_TEXT + 1)


def forces(grammar: Grammar) -> bool:
    return may_force(adapt_grammar(grammar))


def compact(schema: dict[str, Any]) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, schema_grammar(schema).text, any_whitespace=False)


def lark(text: str) -> Grammar:
    return Grammar(GrammarKind.LARK, text)


@pytest.mark.parametrize(
    "grammar",
    [
        schema_grammar(NAMES),
        schema_grammar({"type": "array", "items": {"const": "a"}, "minItems": 1000}),
        schema_grammar({"type": "string", "pattern": "^[0-9]{4}-[^a-z]+$", "minLength": 3}),
        schema_grammar({"$ref": "#/$defs/n", "$defs": {"n": NAMES}}),
        compact(NAMES),
        compact({"type": "array", "items": {"enum": ["one", "two"]}, "minItems": 14, "maxItems": 18}),
        compact({"type": "string", "pattern": "^[a-f]{3}$", "minLength": 3}),
        Grammar(GrammarKind.REGEX, "(yes|no), certainly"),
        lark('start: CHOICE\nCHOICE: "yes"|"no"'),
        lark(f'start: {CALL} ("\\n" {CALL})*\narguments: %json {schema_grammar(NAMES).text}'),
        lark('start: TEXT call*\nTEXT[lazy]: /(?s:.*)/ "<call>"\ncall: <[7]> "a"? // a call\n'),
    ],
)
def test_a_grammar_of_short_texts_may_force(grammar: Grammar) -> None:
    assert forces(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        schema_grammar({"const": LONG}),
        schema_grammar({"enum": ["a", LONG]}),
        schema_grammar({"type": "object", "properties": {LONG: {}}}),
        schema_grammar({"type": "string", "pattern": "^((ab){100}){100}$"}),
        schema_grammar({"type": "string", "pattern": "^a*$", "minLength": 10_000}),
        Grammar(GrammarKind.JSON_SCHEMA, '{"minItems": 1000, "items": {"const": 1}}', whitespace_pattern="[ ]"),
        compact({"anyOf": [{"type": "null"}, {"type": "array", "items": {"const": "a"}, "minItems": 1000}]}),
        compact({"$ref": "#/$defs/a", "$defs": {"a": {"const": "a"}}}),
        compact({"type": "string", "minLength": LONGEST_FORCED_TEXT}),
        compact({"type": "string", "pattern": "^a{900}$"}),
        compact({"minItems": 90, "items": {"type": "array", "minItems": 90, "items": {"const": 1}}}),
        compact({"type": "array", "items": {"const": "x" * 1000}, "anyOf": [{"minItems": 150}]}),
        compact(OPEN_OBJECTS),
        schema_grammar({"type": "string", "pattern": "^(ab)*$", "minLength": 1500}),
        compact({"anyOf": [{"minimum": 1e300, "maximum": 1e300}] * 15}),
        schema_grammar({"type": "string", "pattern": "^(b{0}|x(a{90}){90})$"}),
        schema_grammar({"type": "string", "allOf": [{"pattern": "^(a{7})*$"}, {"pattern": "^(a{11})*$"}]}),
        Grammar(GrammarKind.REGEX, "b|a{100}"),
        Grammar(GrammarKind.EBNF, 'root ::= "a"'),
        lark(f'start: "{LONG}"'),
        lark('start: "b" | "~" a{1000}\na: "x"'),
        lark('start: "b" | "~" (a){1000}\na: "x"'),
        lark('start: "b" | "~" a~1000\na: "x"'),
        lark('start: "b" | "~" a\na: "x" a'),
        lark('start: "b" | "~" a\na: "x" c | "x" c\nc: a'),
        lark('start: "b" | "~" a* E\na: "x"\nE: /[^\\s\\S]/'),
        lark('start: "b" | "~" a* E\na: "x"\nE: /a/ & /b/'),
        lark('start: "b" | "~" %lark {\nstart: "a"{1000}\n}'),
        lark('start: "b" | "~" %regex {"substring_words": "a"}'),
        lark('%llguidance {"no_forcing": false}\nstart: "a"'),
        lark('start: "a"\nstart: "b"'),
        lark("start: missing"),
        lark('start: %json {"const": 1, "x-guidance": {"whitespace_pattern": " ", "whitespace_flexible": true}}'),
        lark("start: r0\n" + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(30)) + '\nr30: "x"'),
    ],
)
def test_a_grammar_whose_texts_may_be_long_forces_none(grammar: Grammar) -> None:
    assert not forces(grammar)


def test_rules_of_rules_are_no_deep_recursion() -> None:
    assert forces(lark("start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(5_000)) + '\nr5000: "x"'))


@pytest.mark.parametrize(
    "text",
    [
        '%llguidance {"no_forcing": false}\nstart: "a"',
        'start: "a"\n%llguidance{"no_forcing":false,\n"no_initial_skip": true}\n',
        'start: %lark {\n%llguidance {"no_forcing": false}\nstart: "a" }',
    ],
)
def test_a_grammar_does_not_choose_whether_it_may_force(text: str) -> None:
    adapted = adapt_grammar(lark(text)).text
    assert "%llguidance {" in adapted
    assert "no_forcing" not in adapted


@pytest.mark.parametrize("options", ["", "x", "[1]", '{"no_forcing":'])
def test_options_that_cannot_be_read_are_refused(options: str) -> None:
    assert "%llguidance" in str(refusal_of(lark(f'start: "a"\n%llguidance {options}')))
