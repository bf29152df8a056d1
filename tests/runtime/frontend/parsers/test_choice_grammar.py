import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvasir.frontend.parsers import Parsers, ToolChoice, UnsupportedChoice
from kvasir.frontend.parsers.formats.descriptions import ToolFormat
from kvasir.frontend.parsers.formats.tool_formats import TOOL_FORMATS
from kvasir.frontend.parsers.parsed import Tool
from kvasir.hub.tokenizer import Tokenizer, load_tokenizer
from kvasir.request.constraint import Grammar, GrammarKind
from runtime.frontend.parsers.grammar_walks import Walker
from runtime.frontend.parsers.outputs import (
    MARKS,
    NAMES,
    SPECIAL_TOKENS,
    TOKENIZER,
    calls,
    content,
    make_tokenizer,
    parse,
    parsers,
)

SPECIAL = make_tokenizer(SPECIAL_TOKENS)
ADDED = make_tokenizer(added=MARKS)
MIXED = make_tokenizer(MARKS[::2], added=MARKS[1::2])
SEARCH = Tool(
    "search",
    parameters={
        "type": "object",
        "properties": {
            "text": {"type": "string", "maxLength": 8},
            "kind": {"enum": ["new", 'o"ld']},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
        },
        "required": ["text"],
        "additionalProperties": False,
    },
    strict=True,
)
SEARCH_ALL = Tool(
    "search.all",
    parameters={
        "type": "object",
        "properties": {
            "note": {"type": ["string", "null"], "maxLength": 9},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 3},
            "deep": {"type": "boolean"},
        },
        "required": ["tags"],
        "additionalProperties": False,
        "$defs": {"tag": {"enum": ["x", "y\\z"]}},
    },
)
PING = Tool("ping", parameters={"type": "object", "properties": {}, "additionalProperties": False})
TOOLS = (SEARCH, SEARCH_ALL, PING)
MARKED = [name for name in NAMES if name not in ("pythonic", "llama3_json")]


def grammar(
    made: Parsers,
    choice: ToolChoice,
    tools: Sequence[Tool] = TOOLS,
    *,
    parallel: bool = True,
    answer: Grammar | None = None,
    prompt_tail: str = "",
) -> str:
    constraint = made.constraint(
        tools=tools, choice=choice, parallel=parallel, prompt_tail=prompt_tail, answer=answer, thinking_budget=None
    )
    assert constraint is not None
    assert constraint.grammar is not None
    assert constraint.grammar.kind is GrammarKind.LARK
    return constraint.grammar.text


def check_calls(made: Parsers, text: str, tools: Sequence[Tool] = TOOLS) -> int:
    by_name = {tool.name: tool for tool in tools}
    found = calls(parse(made, [text], tools=tools))
    for name, arguments in found:
        jsonschema.validate(json.loads(arguments), by_name[name].parameters)
    return len(found)


@pytest.fixture(scope="module")
def walkers() -> dict[str, tuple[Tokenizer, Walker]]:
    path = Path(str(files("kvasir.hub"))) / "demo"
    demo = load_tokenizer(path)
    assert demo.eos_token is not None
    return {
        "text": (TOKENIZER, Walker(TOKENIZER)),
        "special": (SPECIAL, Walker(SPECIAL)),
        "added": (ADDED, Walker(ADDED)),
        "mixed": (MIXED, Walker(MIXED)),
        "demo": (demo, Walker(demo, demo.eos_token)),
    }


@pytest.mark.parametrize("kind", ["text", "special", "added", "mixed", "demo"])
@pytest.mark.parametrize("name", NAMES)
def test_forced_outputs_are_valid_calls(name: str, kind: str, walkers: dict[str, tuple[Tokenizer, Walker]]) -> None:
    tokenizer, walker = walkers[kind]
    made = parsers(name, None, tokenizer)
    lark = grammar(made, ToolChoice.REQUIRED)
    complete = 0
    beginning = "<|channel|>commentary" if name == "openai" else ""  # not a long reasoning
    for seed in range(5):
        text = walker.walk(lark, seed, beginning)
        if text is not None:
            complete += 1
            assert check_calls(made, text) >= 1, text
            assert content(parse(made, [text], tools=TOOLS)) == "", text
    assert complete >= 3


@pytest.mark.parametrize("kind", ["text", "special", "added", "mixed"])
@pytest.mark.parametrize("name", NAMES)
def test_one_call_where_calls_are_not_parallel(
    name: str, kind: str, walkers: dict[str, tuple[Tokenizer, Walker]]
) -> None:
    tokenizer, walker = walkers[kind]
    made = parsers(name, None, tokenizer)
    lark = grammar(made, ToolChoice.REQUIRED, [PING, SEARCH], parallel=False)
    beginning = "<|channel|>commentary" if name == "openai" else ""
    texts = [text for seed in range(6) if (text := walker.walk(lark, seed, beginning)) is not None]
    assert texts
    assert {check_calls(made, text) for text in texts} == {1}


@pytest.mark.parametrize("kind", ["text", "special", "added", "mixed"])
@pytest.mark.parametrize("name", MARKED)
def test_strict_calls_within_text_are_valid(
    name: str, kind: str, walkers: dict[str, tuple[Tokenizer, Walker]]
) -> None:
    tokenizer, walker = walkers[kind]
    made = parsers(name, None, tokenizer)
    tools = [Tool(each.name, parameters=each.parameters, strict=True) for each in TOOLS]
    lark = grammar(made, ToolChoice.AUTO, tools)
    plain = "<|channel|>final<|message|>Hello <b>." if name == "openai" else "Hello <b> [1] {2}."
    assert walker.accepts(lark, plain)
    if name == "openai":
        beginning = "<|channel|>commentary to=functions.search"
    else:
        beginning = f"Hello, {OPENING[name]}"
        assert not walker.accepts(lark, beginning)
    for seed in range(3):
        text = walker.walk(lark, seed, beginning)
        if text is not None:
            assert check_calls(made, text, tools) >= 1, text


@pytest.mark.parametrize("name", ["llama3_json", "pythonic"])
def test_strict_calls_without_marks_are_valid(name: str, walkers: dict[str, tuple[Tokenizer, Walker]]) -> None:
    tokenizer, walker = walkers["special"]
    made = parsers(name, None, tokenizer)
    lark = grammar(made, ToolChoice.AUTO, [SEARCH, PING])
    first = "{" if name == "llama3_json" else "["
    assert walker.accepts(lark, f"Hello {first}")
    assert not walker.allows(lark, f"{first}x")
    if name == "llama3_json":
        assert walker.accepts(lark, "[1]")
        assert not walker.allows(lark, "[ {")
    text = next(text for seed in range(9) if (text := walker.walk(lark, seed, f"\n{first}")) is not None)
    assert check_calls(made, text) >= 1


@pytest.mark.parametrize(
    ("name", "kind", "call", "other"),
    [
        ("mistral", "special", '[TOOL_CALLS]ping[ARGS]{}', "}, search{"),
        ("mistral", "added", '[TOOL_CALLS]ping[ARGS]{}', " search[ARGS]"),
        ("mistral", "text", '[TOOL_CALLS][{"name": "ping", "arguments": {}}]', "\n[{"),
        ("granite", "special", '<|tool_call|>[{"name": "ping", "arguments": {}}]', "[ {"),
        ("llama3_json", "special", '<|python_tag|>{"name": "ping", "parameters": {}}', " ; {"),
    ],
)  # fmt: skip
def test_strict_text_behind_a_call_begins_no_other(
    name: str, kind: str, call: str, other: str, walkers: dict[str, tuple[Tokenizer, Walker]]
) -> None:
    tokenizer, walker = walkers[kind]
    lark = grammar(parsers(name, None, tokenizer), ToolChoice.AUTO, [SEARCH, PING])
    assert walker.accepts(lark, f"{call}, [1] search and {{2}}")
    assert not walker.allows(lark, f"{call}{other}")


OPENING = {described.name: described.openings[0] for described in TOOL_FORMATS if isinstance(described, ToolFormat)}
OUTPUTS = {
    "hermes": '<tool_call>\n{"name": "search", "arguments": {"text": "a", "days": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=search>\n<parameter=text>\na\n\nb\n</parameter>\n<parameter=kind>\n"
    "o\"ld\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    "llama3_json": '{"name": "search", "parameters": {"text": "a"}}; {"name": "ping", "parameters": {}}',
    "pythonic": '[search(text="a", days=2), search.all(tags=["x", "y\\\\z"], deep=true), ping()]',
    "llama4_pythonic": '<|python_start|>[search(text="a")]<|python_end|>',
    "mistral": '[TOOL_CALLS]search[ARGS]{"text": "a"}[TOOL_CALLS]ping[ARGS]{}',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n"
    '{"text": "a"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v31": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search<｜tool▁sep｜>{"text": "a"}'
    "<｜tool▁call▁end｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "granite": '<|tool_call|>[{"name": "search", "arguments": {"text": "a"}}, {"name": "ping", "arguments": {}}]',
    "openai": '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.search '
    '<|constrain|>json<|message|>{"text": "a"}<|call|>',
}  # fmt: skip


@pytest.mark.parametrize("kind", ["special", "added", "mixed"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_as_models_write_them_are_allowed(
    name: str, kind: str, walkers: dict[str, tuple[Tokenizer, Walker]]
) -> None:
    tokenizer, walker = walkers[kind]
    made = parsers(name, None, tokenizer)
    lark = grammar(made, ToolChoice.REQUIRED)
    assert walker.accepts(lark, OUTPUTS[name])
    assert check_calls(made, OUTPUTS[name]) >= 1
    assert not walker.accepts(lark, OUTPUTS[name].replace("search", "such"))
    assert not walker.allows(lark, "Hello")


def test_mistral_without_its_new_token_writes_a_list(walkers: dict[str, tuple[Tokenizer, Walker]]) -> None:
    tokenizer, walker = walkers["text"]
    lark = grammar(parsers("mistral", None, tokenizer), ToolChoice.REQUIRED)
    assert walker.accepts(lark, '[TOOL_CALLS][{"name": "ping", "arguments": {}}]')
    assert not walker.allows(lark, "[TOOL_CALLS]ping")


def test_a_tool_without_parameters_gets_no_arguments(walkers: dict[str, tuple[Tokenizer, Walker]]) -> None:
    lark = grammar(parsers("hermes"), ToolChoice.REQUIRED, [Tool("f")])
    walker = walkers["text"][1]
    assert walker.accepts(lark, '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')
    assert not walker.allows(lark, '<tool_call>\n{"name": "f", "arguments": {"a')
    assert not walker.allows(lark, '<tool_call>\n{"name": "f", "arguments": [')


def test_tools_that_are_not_strict_take_any_object(walkers: dict[str, tuple[Tokenizer, Walker]]) -> None:
    lark = grammar(parsers("hermes"), ToolChoice.AUTO)
    walker = walkers["text"][1]
    assert walker.accepts(lark, 'a <tool_call>\n{"name": "ping", "arguments": {"x": 1}}\n</tool_call> b')
    assert not walker.allows(lark, 'a <tool_call>\n{"name": "search", "arguments": {"x"')


ANSWERS = [
    (Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object", "properties": {"a": {"type": "integer"}}}'), '{"a": 1}'),
    (Grammar(GrammarKind.JSON_SCHEMA, '{"const": [1, 2]}', any_whitespace=False), "[1, 2]"),
    (Grammar(GrammarKind.REGEX, "a/b|c\nd"), "a/b"),
    (Grammar(GrammarKind.REGEX, "a/b|c\nd"), "c\nd"),
    (Grammar(GrammarKind.LARK, 'start: item+\nitem: "x" | "y"'), "xyx"),
]


@pytest.mark.parametrize(("answer", "text"), ANSWERS)
@pytest.mark.parametrize("name", ["hermes", "llama3_json", "openai"])
def test_content_is_the_answer_or_a_call(
    name: str, answer: Grammar, text: str, walkers: dict[str, tuple[Tokenizer, Walker]]
) -> None:
    tokenizer, walker = walkers["special"]
    lark = grammar(parsers(name, None, tokenizer), ToolChoice.AUTO, [PING], answer=answer)
    final = "<|channel|>final<|message|>" if name == "openai" else ""
    assert walker.accepts(lark, final + text)
    assert not walker.accepts(lark, final + "Hello")
    call = {"hermes": '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
            "llama3_json": '{"name": "ping", "parameters": {}}',
            "openai": "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}"}[name]  # fmt: skip
    assert walker.accepts(lark, call)


def test_ebnf_answer_with_tools_is_refused() -> None:
    answer = Grammar(GrammarKind.EBNF, 'root ::= "a"')
    with pytest.raises(UnsupportedChoice, match="ebnf"):
        grammar(parsers("hermes"), ToolChoice.AUTO, answer=answer)


def test_schema_cannot_set_options_of_the_grammar(walkers: dict[str, tuple[Tokenizer, Walker]]) -> None:
    tool = Tool("f", parameters={"type": "object", "x-guidance": {"lenient": True}})
    assert "lenient" not in grammar(parsers("hermes"), ToolChoice.REQUIRED, [tool])


@pytest.mark.parametrize(
    ("tool", "part"),
    [
        (Tool("f", parameters={"type": "string"}), "type"),
        (Tool("f", parameters={"properties": {"a": {"type": "string", "pattern": "x"}}}), "pattern"),
        (Tool("f", parameters={"properties": {"a": {}}, "minProperties": 1}), "minProperties"),
        (Tool("f", parameters={"properties": {"a>": {}}}), "a>"),
        (Tool("f", parameters={"properties": {}, "required": ["b"]}), "'b'"),
        (Tool("f", parameters={"properties": {"a": {"enum": ["</parameter>"]}}}), "'a'"),
        (
            Tool("f", parameters={"properties": {"a": {"type": "string", "maxLength": "3"}}}),
            "not a valid JSON Schema",
        ),
        (Tool("f", parameters={"properties": {"a": {"type": "string", "enum": "x"}}}), "not a valid"),
        (Tool("f", parameters={"properties": {"a": {"type": "string", "anyOf": {}}}}), "not a valid"),
        (Tool("f", parameters={"properties": [], "required": [{}]}), "not a valid"),
        (Tool("f", parameters={"properties": {"a": {"enum": ["\ud800"]}}}), "surrogate"),
        (Tool("f g"), "f g"),
        (Tool("x" * 65), "xxx"),
    ],
)
def test_parts_that_xml_cannot_enforce_are_refused(tool: Tool, part: str) -> None:
    with pytest.raises(UnsupportedChoice, match=part):
        grammar(parsers("qwen3_coder"), ToolChoice.REQUIRED, [tool])


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "pythonic"])
def test_deep_schemas_are_refused(name: str) -> None:
    schema: dict[str, Any] = {"type": "array", "items": {"$ref": "#"}}
    for _ in range(100_000):
        schema = {"type": "array", "items": schema}
    tool = Tool("f", parameters={"type": "object", "properties": {"a": schema}})
    with pytest.raises(UnsupportedChoice, match="nested too deeply"):
        grammar(parsers(name), ToolChoice.REQUIRED, [tool])


def test_at_most_128_tools_are_enforced(walkers: dict[str, tuple[Tokenizer, Walker]]) -> None:
    tools = [Tool(f"{'x' * 61}{number:03}") for number in range(129)]
    lark = grammar(parsers("hermes"), ToolChoice.REQUIRED, tools[:128])
    assert walkers["text"][1].allows(lark, f'<tool_call>\n{{"name": "{tools[127].name}"')
    with pytest.raises(UnsupportedChoice, match="129"):
        grammar(parsers("hermes"), ToolChoice.REQUIRED, tools)
