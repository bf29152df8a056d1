"""The output items of a response: reasoning, messages and function calls, in the order of the model's text."""

import secrets
from typing import Any, Final, Literal

from kvasir.frontend.endpoints.past_calls import new_call_id
from kvasir.frontend.parsers.parsed import CallArguments, CallBegun, ContentText, ParsedEvent, ReasoningText

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ItemType = Literal["reasoning", "message", "function_call"]

_PREFIXES: Final[dict[ItemType, str]] = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_PARTS: Final = {"reasoning": "reasoning_text", "message": "output_text"}


class OutputItem:
    """One item. Its text is that of its only part, or the arguments of a call."""

    def __init__(self, type: ItemType, index: int, call_id: str = "", name: str = "") -> None:
        """`index`: its place in the output. `call_id`, `name`: of the call, and of the called function."""
        self.type = type
        self.index = index
        self.id = f"{_PREFIXES[type]}_{secrets.token_hex(16)}"
        self._call_id = call_id
        self.name = name
        self._texts: list[str] = []
        self._logprobs: list[Any] = []

    @property
    def has_part(self) -> bool:
        """Whether the text is a part of the item's content."""
        return self.type in _PARTS

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add(self, text: str, logprobs: list[Any]) -> None:
        self._texts.append(text)
        self._logprobs += logprobs

    def part(self, text: str, logprobs: list[Any]) -> dict[str, Any]:
        """Return a part of the content with this text."""
        part: dict[str, Any] = {"type": _PARTS[self.type], "text": text}
        return part if self.type == "reasoning" else {**part, "annotations": [], "logprobs": logprobs}

    def begun(self) -> dict[str, Any]:
        """Return the item before its text."""
        return self._item("in_progress", [], "")

    def ended(self, status: ItemStatus, *, scored: bool) -> dict[str, Any]:
        """Return the item with its text; `scored`: with log probabilities."""
        text = self.text
        content = [self.part(text, self._logprobs if scored else [])] if self.has_part else []
        return self._item(status, content, text)

    def _item(self, status: ItemStatus, content: list[dict[str, Any]], arguments: str) -> dict[str, Any]:
        head = {"id": self.id, "type": self.type, "status": status}
        if self.type == "reasoning":
            return {**head, "summary": [], "content": content, "encrypted_content": None}
        if self.type == "message":
            return {**head, "role": "assistant", "content": content}
        return {**head, "call_id": self._call_id, "name": self.name, "arguments": arguments}


class OutputItems:
    """Collects the items of one response."""

    def __init__(self, tool_format: str | None) -> None:
        """`tool_format`: of the model."""
        self._tool_format = tool_format
        self._items: list[OutputItem] = []

    @property
    def last(self) -> OutputItem | None:
        return self._items[-1] if self._items else None

    def take_all(self, events: list[ParsedEvent], logprobs: list[Any]) -> None:
        """Add events. `logprobs`: of the first text of a message among them."""
        for event in events:
            self.take(event, logprobs)
            if isinstance(event, ContentText):
                logprobs = []

    def take(self, event: ParsedEvent, logprobs: list[Any]) -> tuple[OutputItem, str]:
        """Add an event to the item that it belongs to, which may be a new one. Return the item and its new text.

        `logprobs`: of the event, if it is a text of a message.
        """
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
        """Return the last item; of a model that wrote nothing, an empty message."""
        return self.last or self._new("message")

    def ended(self, last_status: ItemStatus, *, scored: bool) -> list[dict[str, Any]]:
        """Return all items; all before the last are complete. `scored`: with log probabilities."""
        last = len(self._items) - 1
        return [
            item.ended(last_status if index == last else "completed", scored=scored)
            for index, item in enumerate(self._items)
        ]

    def _of(self, type: ItemType) -> OutputItem:
        last = self.last
        return last if last is not None and last.type == type else self._new(type)

    def _new(self, type: ItemType, call_id: str = "", name: str = "") -> OutputItem:
        item = OutputItem(type, len(self._items), call_id, name)
        self._items.append(item)
        return item
