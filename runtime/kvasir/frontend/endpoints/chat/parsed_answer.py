"""The answers of chats whose output is parsed: reasoning, content and tool calls, whole and as deltas."""

from collections.abc import Sequence
from typing import Any

from kvasir.client.async_llm import Delta
from kvasir.frontend.endpoints.chat.answer import AnswerWriter
from kvasir.frontend.endpoints.output_plan import OutputPlan
from kvasir.frontend.endpoints.past_calls import new_call_id
from kvasir.frontend.endpoints.tool_use import ToolUse
from kvasir.frontend.generation.generation import Choice
from kvasir.frontend.generation.parsed_text import ParsedText
from kvasir.frontend.parsers.parsed import (
    CallArguments,
    CallBegun,
    ContentText,
    ParsedEvent,
    ReasoningText,
)
from kvasir.link.protocol import FinishReason


class ParsedWriter:
    """Writes choices as AnswerWriter does, with a parser for each of them."""

    def __init__(
        self,
        writer: AnswerWriter,
        plan: OutputPlan,
        *,
        shows_reasoning: bool,
        tool_format: str | None,
    ) -> None:
        self._writer = writer
        self._plan = plan
        self._shows_reasoning = shows_reasoning
        self._tool_format = tool_format
        self._readings: dict[int, _Reading] = {}
        """By index of the choice."""

    @property
    def reasoning_tokens(self) -> int:
        """Of all choices, so far."""
        return sum(reading.text.reasoning_tokens for reading in self._readings.values())

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the usage with the tokens of the reasoning so far."""
        return {**usage, "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens}}

    def read(self, index: int, delta: Delta) -> list[dict[str, Any]]:
        """Read the next output of a choice, and return the deltas of its message."""
        return self._reading(index).read(delta)

    def deltas(self, index: int, delta: Delta) -> list[dict[str, Any]]:
        """Return the choices of the next chunks: the first has everything about the new tokens, the last one the
        finish reason. Empty while the text may be the beginning of a mark, unless tokens are reported."""
        pieces = self.read(index, delta)
        whole = self._writer.delta(index, delta)
        if delta.finish_reason is not None:
            pieces.append({})
            whole["finish_reason"] = self._reading(index).finish_reason(delta.finish_reason)
        elif not pieces:
            reports = whole["logprobs"] is not None or "token_ids" in whole
            return [{**whole, "delta": {}}] if reports else []
        return _spread(whole, pieces)

    def answer(self, choices: Sequence[Choice], usage: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the answer after its head."""
        answer = self._writer.answer(choices, usage)
        for index, choice in enumerate(choices):
            reading = self._reading(index)
            if not reading.ended:  # beam search has no deltas
                reading.read(Delta(choice.text, choice.token_ids, choice.finish_reason))
            written = answer["choices"][index]
            written["message"] = {**reading.message(self._writer.echo), "refusal": None}
            assert choice.finish_reason is not None
            written["finish_reason"] = reading.finish_reason(choice.finish_reason)
        return {**answer, "usage": self.usage(usage)}

    def _reading(self, index: int) -> "_Reading":
        if (reading := self._readings.get(index)) is None:
            plan = self._plan
            reading = _Reading(plan.parsed_text(), plan.use, self._shows_reasoning, self._tool_format)
            self._readings[index] = reading
        return reading


class _Reading:
    """The output of one choice, as far as it is known."""

    def __init__(self, text: ParsedText, use: ToolUse, shows_reasoning: bool, tool_format: str | None) -> None:
        self.text = text
        self.ended = False
        self._use = use
        self._shows_reasoning = shows_reasoning
        self._tool_format = tool_format
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._arguments: list[list[str]] = []

    def read(self, delta: Delta) -> list[dict[str, Any]]:
        """Return the deltas of the message, without empty ones and with neighbours of one kind joined."""
        events = self.text.events(delta)
        self.ended = delta.finish_reason is not None
        return [piece for event in _joined(events) if (piece := self._take(event)) is not None]

    def finish_reason(self, reason: FinishReason) -> str:
        """Return OpenAI's reason: a named function that was called counts as a normal end there."""
        if not self.text.ends_with_calls or self._use.is_named or reason is not FinishReason.STOP:
            return reason
        return "function_call" if self._use.is_older_form else "tool_calls"

    def message(self, echo: str) -> dict[str, Any]:
        """Return the whole message. `echo`: text before the content."""
        message: dict[str, Any] = {"role": "assistant", "content": echo + "".join(self._content) or None}
        if self._reasoning:
            message |= _reasoning("".join(self._reasoning))
        calls = [
            {**call, "function": {"name": call["function"]["name"], "arguments": "".join(arguments)}}
            for call, arguments in zip(self._calls, self._arguments, strict=True)
        ]
        if calls and self._use.is_older_form:
            message["function_call"] = calls[0]["function"]
        elif calls:
            message["tool_calls"] = calls
        return message

    def _take(self, event: ParsedEvent) -> dict[str, Any] | None:
        match event:
            case ReasoningText(text):
                if not self._shows_reasoning:
                    return None
                self._reasoning.append(text)
                return _reasoning(text)
            case ContentText(text):
                self._content.append(text)
                return {"content": text}
            case CallBegun(index, name):
                return self._begin(index, name)
            case CallArguments(index, text):
                self._arguments[index].append(text)
                return self._call_delta(index, {"function": {"arguments": text}})

    def _begin(self, index: int, name: str) -> dict[str, Any]:
        function = {"name": name, "arguments": ""}
        call = {"id": new_call_id(self._tool_format, "call_"), "type": "function", "function": function}
        self._calls.append(call)
        self._arguments.append([])
        return self._call_delta(index, call)

    def _call_delta(self, index: int, fields: dict[str, Any]) -> dict[str, Any]:
        if self._use.is_older_form:
            return {"function_call": fields["function"]}
        return {"tool_calls": [{"index": index, **fields}]}


def _reasoning(text: str) -> dict[str, str]:
    """Clients read one or the other: DeepSeek's and vLLM's older name, or OpenRouter's and vLLM's newer one."""
    return {"reasoning_content": text, "reasoning": text}


def _joined(events: Sequence[ParsedEvent]) -> list[ParsedEvent]:
    """Return the events without empty texts, and with neighbouring texts of one kind as one."""
    result: list[ParsedEvent] = []
    for event in events:
        last = result[-1] if result else None
        match event, last:
            case CallBegun(), _:
                result.append(event)
            case ((ReasoningText() | ContentText() | CallArguments()), _) if not event.text:
                pass
            case ReasoningText(text), ReasoningText(before):
                result[-1] = ReasoningText(before + text)
            case ContentText(text), ContentText(before):
                result[-1] = ContentText(before + text)
            case CallArguments(index, text), CallArguments(same, before) if index == same:
                result[-1] = CallArguments(index, before + text)
            case _:
                result.append(event)
    return result


def _spread(whole: dict[str, Any], pieces: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a choice for each of the deltas. `whole`: the choice with everything else."""
    if len(pieces) == 1:
        return [{**whole, "delta": pieces[0]}]
    ending = {key: whole.pop(key) for key in ("finish_reason", "stop_reason") if key in whole}
    between = {"index": whole["index"], "logprobs": None, "finish_reason": None}
    first = {**whole, "delta": pieces[0], "finish_reason": None}
    middle = [{**between, "delta": piece} for piece in pieces[1:-1]]
    return [first, *middle, {**between, "delta": pieces[-1], **ending}]
