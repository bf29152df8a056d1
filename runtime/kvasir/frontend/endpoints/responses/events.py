"""The events of a streamed response, in bytes, with running sequence numbers."""

from typing import Any, Final

from msgspec.json import encode

from kvasir.frontend.answer_parts import TokenLogprob
from kvasir.frontend.endpoints.responses.answer import ResponseObject, ResponseUsage, status_of
from kvasir.frontend.endpoints.responses.items import ItemStatus, OutputItem, OutputItems
from kvasir.frontend.errors import ApiError
from kvasir.frontend.parsers.parsed import ParsedEvent
from kvasir.link.protocol import FinishReason

_TEXTS: Final = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}
"""Type of an item → its events, without `.delta` and `.done`."""


# Log probabilities come with their text only: the last events, which repeat the text four times, have none.
class ResponseEvents:
    def __init__(self, response: ResponseObject, items: OutputItems) -> None:
        self._response = response
        self._items = items
        self._open: OutputItem | None = None
        """The item whose end has not been written."""
        self._sequence_number = 0
        self._delta_head = b""

    @property
    def begun(self) -> bool:
        return self._sequence_number > 0

    def opening(self) -> bytes:
        response = self._response.begin()
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def texts(self, events: list[ParsedEvent], logprobs: list[TokenLogprob]) -> bytes:
        """Write the next parts. `logprobs`: of the first text of a message among the events."""
        written = b""
        for event in events:
            item, text = self._items.take(event, [])
            if item is not self._open:
                written += self._end("completed") + self._begin(item)
            if item.type == "message":
                written += self._delta(text, b',"logprobs":' + encode(logprobs))
                logprobs = []
            elif text:
                written += self._delta(text)
        return written

    def closing(self, reason: FinishReason | None, usage: ResponseUsage) -> bytes:
        begun = b""
        if self._open is None:
            begun = self._begin(self._items.at_least_one())
        status = status_of(reason)
        response = self._response.finish(self._items.end(status, scored=False), reason, usage)
        return begun + self._end(status) + self._event(f"response.{status}", response=response)

    def failure(self, error: ApiError, usage: ResponseUsage) -> bytes:
        # Clients expect it after the opening.
        opening = b"" if self.begun else self.opening()
        failed = self._response.fail(self._items.end("incomplete", scored=False), error, usage)
        return opening + self._event("response.failed", response=failed)

    # ------------------------------------------------------------------------------------------ items

    def _begin(self, item: OutputItem) -> bytes:
        self._open = item
        place = encode({"type": f"{_TEXTS[item.type]}.delta", **_place(item)})
        self._delta_head = b"event: %b.delta\ndata: %b" % (_TEXTS[item.type].encode(), place[:-1])
        added = self._event("response.output_item.added", output_index=item.index, item=item.begin())
        if item.has_part:
            added += self._event("response.content_part.added", **_place(item), part=item.part(""))
        return added

    def _delta(self, text: str, more: bytes = b"") -> bytes:
        fields = b',"sequence_number":%d%b,"delta":%b}\n\n'
        return self._delta_head + fields % (self._next(), more, encode(text))

    def _end(self, status: ItemStatus) -> bytes:
        item, self._open = self._open, None
        if item is None:
            return b""
        done, text = f"{_TEXTS[item.type]}.done", item.text
        if item.type == "message":
            written = self._event(done, **_place(item), text=text, logprobs=[])
        elif item.type == "reasoning":
            written = self._event(done, **_place(item), text=text)
        else:
            written = self._event(done, **_place(item), name=item.name, arguments=text)
        if item.has_part:
            written += self._event("response.content_part.done", **_place(item), part=item.part(text))
        ended = item.end(status, scored=False)
        return written + self._event("response.output_item.done", output_index=item.index, item=ended)

    # ------------------------------------------------------------------------------------------ bytes

    def _event(self, type: str, **fields: Any) -> bytes:
        data = encode({"type": type, "sequence_number": self._next(), **fields})
        return b"event: %b\ndata: %b\n\n" % (type.encode(), data)

    def _next(self) -> int:
        number = self._sequence_number
        self._sequence_number += 1
        return number


def _place(item: OutputItem) -> dict[str, Any]:
    place: dict[str, Any] = {"item_id": item.id, "output_index": item.index}
    return {**place, "content_index": 0} if item.has_part else place
