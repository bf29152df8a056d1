"""The event sequence of a streamed response, in bytes, with running sequence numbers.

Log probabilities come with their text only: the events at the end, which repeat the text four times, have none.
"""

from typing import Any

import orjson

from kvasir.client.async_llm import Delta
from kvasir.frontend.endpoints.responses.answer import ResponseObject, status_of, text_part
from kvasir.frontend.errors import ApiError


class ResponseEvents:
    """Writes the events of one response: opening, one for each delta, closing or failure."""

    def __init__(self, response: ResponseObject) -> None:
        self._response = response
        self._sequence_number = 0
        self._place = {"item_id": response.item_id, "output_index": 0, "content_index": 0}
        self._texts: list[str] = []
        place = orjson.dumps({"type": "response.output_text.delta", **self._place})
        self._delta_head = b"event: response.output_text.delta\ndata: " + place[:-1]

    @property
    def begun(self) -> bool:
        return self._sequence_number > 0

    def opening(self) -> bytes:
        """The events before the first text."""
        response = self._response.begun()
        item = self._response.item("in_progress", [])
        return (
            self._event("response.created", response=response)
            + self._event("response.in_progress", response=response)
            + self._event("response.output_item.added", output_index=0, item=item)
            + self._event("response.content_part.added", **self._place, part=text_part("", []))
        )

    def delta(self, text: str, logprobs: list[Any]) -> bytes:
        self._texts.append(text)
        fields = b',"sequence_number":%d,"logprobs":%b,"delta":%b}\n\n'
        return self._delta_head + fields % (self._next(), orjson.dumps(logprobs), orjson.dumps(text))

    def closing(self, last: Delta, usage: dict[str, Any]) -> bytes:
        """The events after the last text."""
        text = "".join(self._texts)
        part = text_part(text, [])
        item = self._response.item(status_of(last.finish_reason), [part])
        response = self._response.finished(text, [], last.finish_reason, usage)
        return (
            self._event("response.output_text.done", **self._place, text=text, logprobs=[])
            + self._event("response.content_part.done", **self._place, part=part)
            + self._event("response.output_item.done", output_index=0, item=item)
            + self._event(f"response.{response['status']}", response=response)
        )

    def failure(self, error: ApiError, usage: dict[str, Any]) -> bytes:
        """The last event of a response that ends with an error. Clients expect it after the opening."""
        opening = b"" if self.begun else self.opening()
        failed = self._response.failed("".join(self._texts), error, usage)
        return opening + self._event("response.failed", response=failed)

    def _event(self, type: str, **fields: Any) -> bytes:
        data = orjson.dumps({"type": type, "sequence_number": self._next(), **fields})
        return b"event: %b\ndata: %b\n\n" % (type.encode(), data)

    def _next(self) -> int:
        number = self._sequence_number
        self._sequence_number += 1
        return number
