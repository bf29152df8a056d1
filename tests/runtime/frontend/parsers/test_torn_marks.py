"""Marks that are missing, or stand in prose: Qwen3-Coder's XML, and the headers of harmony."""

import json
from typing import Any, Final

import pytest

from kvasir.frontend.parsers.parsed import Tool
from kvasir.frontend.parsers.streaming.emitter import MAX_HELD_CHARACTERS
from runtime.frontend.parsers.outputs import calls, calls_of, content, parse, parsers

LONG: Final = "x" * MAX_HELD_CHARACTERS
EDIT: Final = Tool(
    "edit", parameters={"properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "t": {"type": "string"}}}
)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("<parameter=s>\nx\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>", {"s": "x", "n": 3}),
        ("<parameter=s>x<parameter=n>3</function></tool_call>", {"s": "x", "n": 3}),
        ("<parameter=s>\nx\n</function>\n</tool_call>", {"s": "x"}),
        ("<parameter=s>\nx\n</function>\n", {"s": "x"}),
        ("<parameter=s>\nx\n</tool_call>", {"s": "x"}),
        ("<parameter=n>\n3\n</function>\n</tool_call>", {"n": 3}),
        ("<parameter=s>\nx\n</parameter>\n</tool_call>", {"s": "x"}),
        ("<parameter=s>\nx\n</parameter>", {"s": "x"}),
        ("<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>\n</tool_call>", {"s": "x"}),
        ("<parameter=s>\na <parameter=s> <parameter=zz> </function> b\n</parameter>\n</function>\n</tool_call>",
         {"s": "a <parameter=s> <parameter=zz> </function> b"}),
    ],
)  # fmt: skip
def test_xml_values_may_lack_their_end_mark(written: str, value: Any) -> None:
    text = f"<tool_call>\n<function=edit>\n{written}"
    assert calls_of("qwen3_coder", text, tools=[EDIT]) == [("edit", value)]
    long = {**value, "t": LONG}
    text = f"<tool_call>\n<function=edit>\n<parameter=t>\n{LONG}\n</parameter>\n{written}"
    assert calls_of("qwen3_coder", text, tools=[EDIT]) == [("edit", long)]


def test_xml_value_without_end_mark_ends_before_the_text() -> None:
    call = "<tool_call>\n<function=edit>\n<parameter=s>\nx\n</function>\n</tool_call>"
    events = parse(parsers("qwen3_coder"), [f"{call}\nDone.\n{call}"], tools=[EDIT])
    assert content(events) == "\nDone."
    assert [json.loads(arguments) for _, arguments in calls(events)] == [{"s": "x"}, {"s": "x"}]


@pytest.mark.parametrize(
    "text",
    [
        "Write `<function=edit>` in the prompt.",
        "Write `<function=nope>` in the prompt.",
        "Use the <function=edit> tag to call it.",
        "<function=edit> is the tag.",
        "The tag is\n<function=edit>\n",
        "`<function=edit></function>` is a call",
        "`<tool_call><function=edit>` and `</function>`",
        "<function=nope>\n<parameter=s>\nx\n</parameter>\n</function>",
        "<tool_call>\n<function=edit>\n<parameter=s>\nx",
    ],
)
def test_prose_with_marks_of_xml_is_content(text: str) -> None:
    events = parse(parsers("qwen3_coder"), [text], tools=[EDIT])
    assert parse(parsers("qwen3_coder"), text, tools=[EDIT]) == events
    assert (content(events), calls(events)) == (text, [])


@pytest.mark.parametrize("recipient", ["f", "functions.f"])
@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to={} <|constrain|>json",
        "<|channel|>commentary to={}",
        "<|channel|>analysis to={} code",
        "<|start|>assistant to={}<|channel|>commentary json",
    ],
)
def test_harmony_recipient_may_lack_its_namespace(recipient: str, header: str) -> None:
    text = header.replace("{}", recipient) + '<|message|>{"a": 1}<|call|>'
    assert calls_of("openai", text) == [("f", {"a": 1})]
