"""Sections whose calls and marks are well-formed each, but stand apart, are missing or come in another order."""

from typing import Any, Final

import pytest

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
