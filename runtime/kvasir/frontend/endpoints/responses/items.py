"""The output items of a response: reasoning, messages and function calls, in the order of the text."""

import secrets
from typing import Any, Final, Literal

from msgspec import Struct

from kvasir.frontend.answer_parts import TokenLogprob
from kvasir.frontend.endpoints.past_calls import new_call_id
from kvasir.frontend.parsers.parsed import CallArguments, CallBegun, ContentText, ParsedEvent, ReasoningText

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ItemType = Literal["reasoning", "message", "function_call"]

_PREFIXES: Final[dict[ItemType, str]] = {"reasoning": "rs", "message": "msg", "function_call": "fc"}


class ReasoningPart(Struct, tag="reasoning_text"):
    text: str


class OutputTextPart(Struct, tag="output_text"):
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class OutputReasoning(Struct, tag="reasoning"):
    id: str
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningPart]
    encrypted_content: None


class OutputMessage(Struct, tag="message"):
    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputTextPart]


class OutputFunctionCall(Struct, tag="function_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


OutputStruct = OutputReasoning | OutputMessage | OutputFunctionCall


class OutputItem:
    """One item; its text is that of its only part, or the arguments of a call."""

    def __init__(self, type: ItemType, index: int, call_id: str = "", name: str = "") -> None:
        self.type = type
        self.index = index
        self.id = f"{_PREFIXES[type]}_{secrets.token_hex(16)}"
        self._call_id = call_id
        self.name = name
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    @property
    def has_part(self) -> bool:
        return self.type != "function_call"

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add(self, text: str, logprobs: list[TokenLogprob]) -> None:
        self._texts.append(text)
        self._logprobs += logprobs

    def part(self, text: str) -> ReasoningPart | OutputTextPart:
        return ReasoningPart(text) if self.type == "reasoning" else OutputTextPart(text, [], [])

    def begin(self) -> OutputStruct:
        if self.type == "reasoning":
            return OutputReasoning(self.id, "in_progress", [], [], None)
        if self.type == "message":
            return OutputMessage(self.id, "in_progress", "assistant", [])
        return OutputFunctionCall(self.id, "in_progress", self._call_id, self.name, "")

    def end(self, status: ItemStatus, *, scored: bool) -> OutputStruct:
        """`scored`: with log probabilities."""
        text = self.text
        if self.type == "reasoning":
            return OutputReasoning(self.id, status, [], [ReasoningPart(text)], None)
        if self.type == "message":
            part = OutputTextPart(text, [], self._logprobs if scored else [])
            return OutputMessage(self.id, status, "assistant", [part])
        return OutputFunctionCall(self.id, status, self._call_id, self.name, text)


class OutputItems:
    def __init__(self, tool_format: str | None) -> None:
        self._tool_format = tool_format
        self._items: list[OutputItem] = []

    @property
    def last(self) -> OutputItem | None:
        return self._items[-1] if self._items else None

    def take_all(self, events: list[ParsedEvent], logprobs: list[TokenLogprob]) -> None:
        """Add events. `logprobs`: of their first message text."""
        for event in events:
            self.take(event, logprobs)
            if isinstance(event, ContentText):
                logprobs = []

    def take(self, event: ParsedEvent, logprobs: list[TokenLogprob]) -> tuple[OutputItem, str]:
        """Add an event. Return its item and the new text."""
        match event:
            case CallBegun():
                return self._new("function_call", new_call_id(self._tool_format, "call_"), event.name), ""
            case CallArguments():
                item = self._of("function_call")
            case ReasoningText():
                item = self._of("reasoning")
            case ContentText():
                item = self._of("message")
        item.add(event.text, logprobs if item.type == "message" else [])
        return item, event.text

    def at_least_one(self) -> OutputItem:
        """Return the last item, or a new empty message."""
        return self.last or self._new("message")

    def end(self, last_status: ItemStatus, *, scored: bool) -> list[OutputStruct]:
        """`scored`: with log probabilities."""
        last = len(self._items) - 1
        return [
            item.end(last_status if index == last else "completed", scored=scored)
            for index, item in enumerate(self._items)
        ]

    def _of(self, type: ItemType) -> OutputItem:
        last = self.last
        return last if last is not None and last.type == type else self._new(type)

    def _new(self, type: ItemType, call_id: str = "", name: str = "") -> OutputItem:
        item = OutputItem(type, len(self._items), call_id, name)
        self._items.append(item)
        return item
