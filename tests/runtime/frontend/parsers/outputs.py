"""Outputs of models in all formats, and the parsers for them."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import tokenizers

from kvasir.frontend.parsers import Parsers
from kvasir.frontend.parsers.formats.tool_formats import TOOL_FORMATS
from kvasir.frontend.parsers.parsed import CallArguments, CallBegun, ContentText, ParsedEvent, ReasoningText, Tool
from kvasir.frontend.parsers.streaming.emitter import merged
from kvasir.hub.tokenizer import Tokenizer
from runtime.hub.small_tokenizers import byte_level

WEATHER: Final = Tool(
    "weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "exact": {"type": "boolean"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    },
)
TOOLS: Final = (WEATHER, Tool("now"), Tool("f"), Tool("g"))

SPECIAL_TOKENS: Final = [
    "<|python_tag|>", "<|python_start|>", "<|python_end|>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call|>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>",
    "<think>", "</think>",
]  # fmt: skip
"""Tokens that models with these formats have as special ones."""
MARKS: Final = [*SPECIAL_TOKENS, "<tool_call>", "</tool_call>", "<function=", "</parameter>", "```"]
"""Tokens that some models have as added ones, special or not."""

ARGUMENTS: Final = '{"city": "Køb{en}\\"<\\/tool_call> </tool_call>\\u00e5", "tags": ["a]", "}"], "days": -1.5e3}'
"""JSON with marks, brackets and escapes inside strings."""

CALL: Final[dict[str, str]] = {
    "hermes": f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nKøb\n</parameter >\n</parameter>\n"
    '<parameter=days>\n3\n</parameter>\n<parameter=tags>\n["a", "</function>"]\n</parameter>\n'
    "</function>\n</tool_call>",
    "llama3_json": f'{{"name": "weather", "parameters": {ARGUMENTS}}}',
    "pythonic": "[weather(city='Kø\\'b', days=-3, tags=[\"a]\", ')'], exact=True, note=None), now()]",
    "mistral": f'[TOOL_CALLS][{{"name": "weather", "arguments": {ARGUMENTS}}}, '
    '{"name": "now", "arguments": {}}]',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
    f"{ARGUMENTS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{{}}\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
    f"{ARGUMENTS}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "granite": f'<|tool_call|>[{{"name": "weather", "arguments": {ARGUMENTS}}}]',
    "openai": "<|channel|>analysis<|message|>Hm <b>.<|end|><|start|>assistant<|channel|>commentary "
    f"to=functions.weather <|constrain|>json<|message|>{ARGUMENTS}<|call|>",
}  # fmt: skip
"""An output of calls for each format."""

_SAME: Final = {"llama4_pythonic": "pythonic"}
NAMES: Final = [
    each.name for each in TOOL_FORMATS if each.name not in ("qwen3_xml", "mimo", "llama4_json", "granite4")
]
"""Without other names of the same formats."""

_OF_FORMAT: Final[dict[str, list[str]]] = {
    "hermes": [
        '<tool_call>{"arguments": {"days": 1}, "name": "weather", "id": [1, {}]}</tool_call>',
        '<tool_call>{"name": "now", "arguments": null}</tool_call> <tool_call>{"name": "now"}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": "{\\"days\\": 1}"}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"days": 01}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"days": tru}}</tool_call> more',
        '<tool_call>{"name": "weather", "arguments": {"city": "Os\nlo", "tags": ["a",],}}}\n</tool_call>',
        "<tool_call>{'name': 'weather', 'arguments': {city: 'a\"b', 'note': None</tool_call>",
        '<tool_call>{"name": "no such", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"days": 1}} and </tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call><tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "a <tool_call> is a mark, and <tool_ is not </tool_call>",
        '<tool_call>\n```json\n[{"name": "now", "arguments": {}}, {"name": "no"}]\n```\n</tool_call>\n```',
        '<tool_call>{"type": "function", "function": {"name": "now", "arguments": {}}, "id": 1}</tool_call>',
        '<tool_call>{"name": "weather", // one\n"arguments": {"city": "a" /* b */, "days": 1 # c\n}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"city": "say "a" // b", "note": "a/" //\n}}</tool_call>',
    ],
    "qwen3_coder": [
        "<function=weather>\n<parameter=note>\nnull\n</parameter>\n<parameter=x>\n</parameter>\n</function>",
        "<tool_call><function=now></function></tool_call> <tool_call>\n<function=now>\n</tool_call>",
        "<tool_call>\n<function=weather>\n<parameter=city>\n</parameter>x</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=weather>\n<parameter=days>\nmany\n</parameter>\n<parameter=tags>\n['a', 'b',]\n"
        "</parameter>\n<parameter=exact>\nTrue\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<tool_call>{}</tool_call> and <function is text",
        "<tool_call>\n<function=weather>\n<parameter=city>\nx\n<parameter=days>\n3\n</function>\n</tool_call> and",
        "Write `<function=now>` or <function=now></function>, or\n<function=now> alone.",
    ],
    "llama3_json": [
        '<|python_tag|>{"name": "now", "parameters": {}}; {"name": "weather", "arguments": {"days": 1}}\n'
        '{"type": "function", "name": "now", "parameters": {}}',
        ' {"name": "Bob", "age": 3}',
        '{"name": "now", "parameters": {}}; and {"name": "now", "parameters": {}}',
        '{"name": "now"}',
        'The object {"name": "now", "parameters": {}} <|python_tag|> is text',
        '[{"name": "now", "parameters": {}}, {"name": "f", "parameters": {}}] [1]',
        '[{"name": "Bob", "parameters": {}}]',
    ],
    "pythonic": [
        "<|python_start|>[now()]<|python_end|> [now()]",
        "[weather(1)]",
        "[1, 2] is a list",
        "[weather(city=f(x))]",
        "[weather(tags={'a': (1, .5, 0x1f), \"b\": '''x\ny'''}, city=\"\\x41\\u00e5\\U0001f600\\101\\q\",)] ",
        "[weather(city='a\nb')]",
        "[now(), weather(days=1e999)]",
        "[now()]\n[f(a=1, # one\n b=2)] [1]",
    ],
    "mistral": [
        '[TOOL_CALLS]weather[ARGS]{"days": 1}[TOOL_CALLS]now{}',
        "[TOOL_CALLS]now[ARGS]x",
        "[TOOL_CALLS]now[CALL_ID]abc123XYZ[ARGS]{}}",
        '[TOOL_CALLS][{"name": "nope", "arguments": {}}, {"name": "now", "arguments": {}}]',
        "[TOOL_CALLS][]",
        "[TOOL_CALLS][1]",
        '[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": 1}] end',
        '[TOOL_CALLS]now[ARGS]{}, f[ARGS]{"a": 1} now then',
        '[TOOL_CALLS][{"name": "now", "arguments": {}}]\n[{"name": "f", "arguments": {}}][TOOL_CALLS]now{}',
    ],
    "deepseek_v3": ["<｜tool▁calls▁begin｜>x<｜tool▁calls▁end｜>"],
    "deepseek_v31": [
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>[1]<｜tool▁call▁end｜>",
    ],
    "granite": [
        '[{"name": "now", "arguments": {}}]',
        '<tool_call>[{"name": "now", "arguments": {}}] text <|tool_call|>[',
        '<tool_call>{"name": "now", "arguments": {}}</tool_call> more',
    ],
    "openai": [
        "<|channel|>final<|message|>Hello<|return|>",
        "<|channel|>commentary<|message|>First this.<|end|><|start|>assistant to=functions.now<|channel|>"
        "commentary json<|message|><|call|>",
        "<|channel|>commentary to=functions.now<|message|>not JSON<|call|>",
        "<|channel|>commentary to=browser.search<|message|>{}<|call|>",
        '<|channel|>commentary to=weather <|constrain|>json<|message|>{"city": "a\nb",}}<|call|>',
        "<|channel|>commentary to=functions.nope<|message|>{}<|call|>",
        "no channel <|message|> at all<|end|>",
        "<|channel|>" + "x" * 1100,
    ],
}


def outputs(name: str) -> list[str]:
    name = _SAME.get(name, name)
    call = CALL[name]
    special = [
        call,
        f"Let me see.\n{call}\n\n{call}\n",
        f"\n\n{call} Done.\n",
        call[: len(call) * 2 // 3] + "\x00" + call,
    ]
    return [*special, *_OF_FORMAT[name], "", "  \n", "plain <text> [with] {marks}\n"]


def make_tokenizer(special: Sequence[str] = (), added: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer of all bytes, with these special tokens and these added ones that are not special."""
    backend = byte_level()
    backend.no_truncation()
    backend.no_padding()
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in special])
    backend.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in added])
    return Tokenizer(backend, "<s>", "</s>")


TOKENIZER: Final = make_tokenizer()


def parsers(tool_name: str | None, reasoning_name: str | None = None, tokenizer: Tokenizer = TOKENIZER) -> Parsers:
    return Parsers.choose(None, tokenizer, tool_name, reasoning_name)


def parse(
    made: Parsers,
    pieces: Iterable[str],
    tools: Sequence[Tool] = TOOLS,
    prompt_tail: str = "",
    *,
    is_cut: bool = False,
) -> list[ParsedEvent]:
    """The events of an output that arrives in these pieces, merged. `is_cut`: by its length."""
    parser = made.parser(tools=tools, prompt_tail=prompt_tail)
    assert parser is not None
    events: list[ParsedEvent] = []
    for piece in pieces:
        events += parser.push(piece, [])
    return merged(events + parser.finish(is_cut=is_cut))


def content(events: Iterable[ParsedEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ContentText))


def reasoning(events: Iterable[ParsedEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ReasoningText))


def calls(events: Iterable[ParsedEvent]) -> list[tuple[str, str]]:
    names: list[str] = []
    arguments: list[str] = []
    for event in events:
        if isinstance(event, CallBegun):
            assert event.index == len(names)
            names.append(event.name)
            arguments.append("")
        elif isinstance(event, CallArguments):
            assert event.index == len(names) - 1
            arguments[-1] += event.text
    return list(zip(names, arguments, strict=True))


def calls_of(name: str, text: str, **options: Any) -> list[tuple[str, Any]]:
    """Names and values of the calls of an output that has nothing else, however it is split."""
    events = parse(parsers(name), [text], **options)
    assert parse(parsers(name), text, **options) == events
    assert content(events) == ""
    return [(function, json.loads(arguments)) for function, arguments in calls(events)]
