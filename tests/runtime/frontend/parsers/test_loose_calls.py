"""Sections whose calls and marks are well-formed each, but stand apart, are missing or come in another order."""

import json
from typing import Any, Final

import pytest

from kvasir.frontend.parsers.parsed import Tool
from runtime.frontend.parsers.outputs import calls, calls_of, content, parse, parsers

NOW: Final = '{"name": "now", "arguments": {}}'
BEGIN, END = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
V3: Final = f"{BEGIN}function<｜tool▁sep｜>now\n```json\n"
BOTH: Final[list[tuple[str, Any]]] = [("f", {"a": "x"}), ("now", {})]


@pytest.mark.parametrize("between", [",", "\n", ", \n"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<tool_call>\n{}{}{}\n</tool_call>"),
        ("llama3_json", "{}{}{}"),
        ("mistral", "[TOOL_CALLS][{}{}{}]"),
        ("granite", "<|tool_call|>[{}{}{}]"),
    ],
)
def test_objects_of_a_section_are_calls(name: str, text: str, between: str) -> None:
    written = text.format('{"name": "f", "arguments": {"a": "x"}}', between, NOW)
    assert calls_of(name, written) == BOTH


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", f"<tool_call>{NOW} and</tool_call> more"),
        ("hermes", f'<tool_call>{NOW}\n{{"and": 1}}</tool_call> more'),
        ("qwen3_coder", "<tool_call>\n<function=now>\n</function> and\n</tool_call> more"),
        ("deepseek_v3", f"{V3}{{}} and{END} more"),
        ("deepseek_v3", f"{V3}{{}}\n``` and\n{END} more"),
        ("deepseek_v31", f"{BEGIN}now<｜tool▁sep｜>{{}} and{END} more"),
        ("deepseek_v31", f"{BEGIN}now<｜tool▁sep｜>{{}}<｜tool▁call▁end｜> and <｜tool▁calls▁end｜> more"),
    ],
)
def test_marks_behind_text_behind_a_call_are_dropped(name: str, text: str) -> None:
    events = parse(parsers(name), [text])
    assert parse(parsers(name), text) == events
    assert calls(events) == [("now", "{}")]
    assert content(events).endswith(" more")
    assert not any(mark in content(events) for mark in ("<", "｜", "`"))


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
def test_mark_behind_a_closed_section_is_content(name: str) -> None:
    call = {"hermes": NOW, "qwen3_coder": "<function=now></function>"}[name]
    events = parse(parsers(name), [f"<tool_call>{call}</tool_call> The mark is </tool_call>."])
    assert content(events) == " The mark is </tool_call>."


@pytest.mark.parametrize("fence", ["", "\n```", "\n```\n", "```", " ``` "])
def test_code_block_of_arguments_may_end_anyhow(fence: str) -> None:
    assert calls_of("deepseek_v3", f"{V3}{{}}{fence}{END}") == [("now", {})]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deepseek_v3", f"{V3}\n```{END}"),
        ("deepseek_v31", f"{BEGIN}now<｜tool▁sep｜>{END}"),
        ("deepseek_v31", f"{BEGIN}now<｜tool▁sep｜>\n{END}"),
    ],
)
def test_named_call_without_arguments_has_none(name: str, text: str) -> None:
    assert calls_of(name, text) == [("now", {})]


@pytest.mark.parametrize(
    "between",
    [
        "\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n",
        "\n</parameter>\n</function>\n",
        "\n</parameter>\n",
        "\n</parameter>\n<tool_call>\n",
        "\n</parameter>\n</function>\n<tool_call>\n",
        "\n<tool_call>\n",
    ],
)
@pytest.mark.parametrize("line", ["\n", "\r\n"])
def test_xml_call_ends_where_the_next_one_begins(between: str, line: str) -> None:
    text = (
        f"<tool_call>\n<function=f>\n<parameter=a>\nx{between}<function=now>\n</function>\n</tool_call>"
    ).replace("\n", line)
    assert calls_of("qwen3_coder", text) == BOTH


@pytest.mark.parametrize("value", ["a <tool_call>\n<function=now> b", "a\n<tool_call>\nb", "a\r\nb\n", "\ta"])
def test_xml_value_keeps_its_marks_and_lines(value: str) -> None:
    text = f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"
    assert calls_of("qwen3_coder", text) == [("f", {"a": value})]


@pytest.mark.parametrize("recipient", [" to=functions.f", " to=f"])
@pytest.mark.parametrize("channel", ["analysis", "commentary json", "commentary <|constrain|>json"])
@pytest.mark.parametrize("prompt_tail", ["<|start|>assistant", "<|end|><|start|>assistant"])
def test_recipient_may_stand_behind_the_prompts_role(recipient: str, channel: str, prompt_tail: str) -> None:
    text = f'{recipient}<|channel|>{channel}<|message|>{{"a": 1}}<|call|>'
    assert calls_of("openai", text, prompt_tail=prompt_tail) == [("f", {"a": 1})]


@pytest.mark.parametrize("prompt_tail", ["<|start|>assistant", "<|start|>assistant<|channel|>final"])
@pytest.mark.parametrize("text", ["Hello", " to", " to=", " to=f <|channel|>"])
def test_header_in_the_prompt_is_never_content(prompt_tail: str, text: str) -> None:
    events = parse(parsers("openai"), [text], prompt_tail=prompt_tail)
    assert parse(parsers("openai"), text, prompt_tail=prompt_tail) == events
    assert content(events) == text


F: Final = '{"name": "f", "arguments": {"a": "x"}}'


@pytest.mark.parametrize(
    ("name", "opening", "closing"),
    [
        ("hermes", "<tool_call>\n", "\n</tool_call>"),
        ("granite", "<|tool_call|>", ""),
        ("granite", "<tool_call>", "</tool_call>"),
        ("llama3_json", "<|python_tag|>", ""),
        ("mistral", "[TOOL_CALLS]", ""),
    ],
)
@pytest.mark.parametrize(
    "calls",
    [
        f"[{F}, {NOW}]",
        f"{F}\n{NOW}",
        f"```json\n[{F}, {NOW}]\n```",
        f"```\n{F}\n{NOW}\n```",
        f'{{"type": "function", "function": {F}}}, {{"function": {NOW}, "id": "c1"}}',
        f'{{"function": "f", "arguments": {{"a": "x"}}}} {NOW}',
        f'{{"name": "f", // one\n"arguments": {{"a": "x" /* two */}} # three\n}}{NOW}',
    ],
)
def test_objects_in_any_wrapping_are_calls(name: str, opening: str, closing: str, calls: str) -> None:
    assert calls_of(name, f"{opening}{calls}{closing}") == BOTH


@pytest.mark.parametrize("name", ["llama3_json", "granite"])
def test_array_at_the_beginning_is_calls(name: str) -> None:
    assert calls_of(name, f"[{F}, {NOW}]") == BOTH
    for text in (
        '[{"name": "nope", "arguments": {}}]',
        '[{"name": "f"}]',
        "[1]",
        f"As JSON: [{NOW}]",
        "```\n[1]```",
    ):
        events = parse(parsers(name), [text])
        assert (content(events), calls(events)) == (text, [])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": "x"}now[ARGS]{}'),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": "x"}, now{}'),
        ("mistral", f"[TOOL_CALLS][{F}]\n[{NOW}]"),
        ("pythonic", "[f(a='x')]\n[now()]"),
        ("pythonic", "[f(a='x')][now()]"),
    ],
)
def test_second_call_may_lack_its_mark(name: str, text: str) -> None:
    assert calls_of(name, text) == BOTH


@pytest.mark.parametrize(
    ("name", "call", "rest"),
    [
        ("mistral", "[TOOL_CALLS]now{}", " now then"),
        ("mistral", "[TOOL_CALLS]now{}", ", nope{}"),
        ("mistral", "[TOOL_CALLS]now{}", ' f[ARGS]{"a" "b"}'),
        ("mistral", f"[TOOL_CALLS][{NOW}]", "\n[1]"),
        ("pythonic", "[now()]", "\n[1] [now()]"),
        ("pythonic", "[now()]", " [see(1)]"),
        ("llama3_json", f"[{NOW}]", "\n```python\nx\n```"),
    ],
)
def test_text_behind_a_call_is_content(name: str, call: str, rest: str) -> None:
    events = parse(parsers(name), [call + rest])
    assert parse(parsers(name), call + rest) == events
    assert (content(events).strip(" ,"), calls(events)) == (rest.strip(" ,"), [("now", "{}")])


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('{"a": 1, // one\n "b": 2}', {"a": 1, "b": 2}),
        ('{// one\n"a": [1, /* "two" */ 2] # }\n}', {"a": [1, 2]}),
        ('{"a": "x" // it\'s\n}', None),
        ('{"a": "x" // one\n, "b": "//" /* * */}', None),
        ('{"a": "x" // one\n, "b": "//" /* two */}', {"a": "x", "b": "//"}),
        ('{"url": "http://x#y", "a": "say "b" // c"}', {"url": "http://x#y", "a": 'say "b" // c'}),
        ('{"a": 1 / 2}', None),
    ],
)
def test_comments_in_arguments_are_left_out(written: str, value: Any) -> None:
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    if value is None:
        events = parse(parsers("hermes"), [text])
        assert (content(events), calls(events)) == (text, [])
    else:
        assert calls_of("hermes", text) == [("f", value)]


@pytest.mark.parametrize("comment", ["# one", "// one", "/* one"])
@pytest.mark.parametrize("torn", ['{{"name": "now", {} }}', '{{"name": "now", "arguments": {{"a": 1 {} }}}}'])
@pytest.mark.parametrize("between", ["", "\n"])
def test_comment_without_an_end_ends_with_its_call(comment: str, torn: str, between: str) -> None:
    text = f"<tool_call>{torn.format(comment)}</tool_call>{between}<tool_call>{F}</tool_call>"
    events = parse(parsers("hermes"), [text])
    assert parse(parsers("hermes"), text) == events
    assert calls(events) == [("f", '{"a": "x"}')]


def test_mark_behind_a_comment_without_an_end_is_no_content() -> None:
    events = parse(parsers("openai"), '<|channel|>commentary to=functions.f<|message|>{"a": 1 // one<|call|>')
    assert "<|call|>" not in content(events)


@pytest.mark.parametrize("value", ["1e999", "-1e999", "Infinity", "[1e999]", '{"a": -1e999}'])
def test_xml_numbers_are_finite(value: str) -> None:
    tool = Tool("f", parameters={"properties": {"a": {"type": ["number", "array", "object"]}}})
    text = f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"
    events = parse(parsers("qwen3_coder"), [text], tools=[tool])
    ((_, arguments),) = calls(events)
    assert "inf" not in str(json.loads(arguments)).lower()
