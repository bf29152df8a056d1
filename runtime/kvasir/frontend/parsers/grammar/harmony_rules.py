"""Rules for harmony's messages."""

from collections.abc import Sequence

from kvasir.frontend.parsers.grammar.lark_text import LarkText, either, joined
from kvasir.frontend.parsers.grammar.parameter_rules import arguments_schema
from kvasir.frontend.parsers.parsed import Tool
from kvasir.frontend.parsers.streaming.harmony import CALL, CHANNEL, END, MESSAGE, START


def harmony_call(lark: LarkText, tools: Sequence[Tool], *, only_strict: bool) -> str:
    """Return an expression for a message that calls a tool: one, as the model then waits for its result."""
    calls = []
    for tool in tools:
        schema = arguments_schema(tool) if tool.strict or not only_strict else {"type": "object"}
        header = f"{CHANNEL}commentary to=functions.{tool.name} <|constrain|>json{MESSAGE}"
        calls.append(lark.rule("call", joined(lark.literal(header), lark.json(schema))))
    return f"{either(calls)} ({lark.literal(CALL)})?"


def harmony_answer(lark: LarkText, answer: str) -> str:
    return joined(lark.literal(f"{CHANNEL}final{MESSAGE}"), answer)


def harmony_text(lark: LarkText) -> str:
    return joined(lark.literal(f"{CHANNEL}final{MESSAGE}"), "/(?s:.*)/")


def behind_reasoning(lark: LarkText, messages: str) -> str:
    """Return an expression for messages behind the end mark of the reasoning."""
    return joined(lark.literal(f"{START}assistant"), messages)


def with_reasoning(lark: LarkText, messages: str) -> str:
    """Return an expression for messages with or without reasoning before them."""
    end = lark.rule("reasoned", _lazy_end(lark), "" if lark.is_special(END) else "[lazy]")
    reasoning = lark.rule(
        "reasoning", joined(lark.literal(f"{CHANNEL}analysis{MESSAGE}"), end, lark.literal(f"{START}assistant"))
    )
    return joined(f"{reasoning}?", messages)


def _lazy_end(lark: LarkText) -> str:
    if lark.is_special(END):
        return joined("/(?s:.*)/", lark.literal(END))
    return lark.rule("END", f"/(?s:.*)/ {lark.literal(END)}")
