"""Server-sent events: how a generation is streamed to a client.

The status is decided by the first event: what fails before it is an HTTP error, what fails later an event with an
"error" in the stream.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvasir.frontend.errors import as_api_error
from kvasir.frontend.generation.live import LiveRequests
from kvasir.frontend.telemetry.request_log import RequestRecord

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"


class EventStream(Response):
    """Sends each item of `events` (whole events, in bytes) at once; the one that ends with DONE is the last."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], live: LiveRequests) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._events = events
        self._live = live
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        last = b""
        try:
            async with self._live.watch(receive), aclosing(self._events) as events:
                async for event in events:
                    if event.endswith(DONE):
                        last = event
                    else:
                        await self._send(event, send)
        except ClientDisconnect:
            return
        except Exception as error:
            if not self._started:
                raise
            last = _error_event(error, scope["state"]["record"])
        await self._send(last, send, more=False)

    async def _send(self, event: bytes, send: Send, more: bool = True) -> None:
        if not self._started:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            self._started = True
        await send({"type": "http.response.body", "body": event, "more_body": more})


def _error_event(error: Exception, record: RequestRecord) -> bytes:
    told = as_api_error(error, record.request_id)
    record.error = told.message
    if told.code == "internal_error":
        log.error("request %s failed in mid-stream", record.request_id, exc_info=error)
    return b"data: " + told.body() + b"\n\n"


class Chunks:
    """Writes the chunks of one stream; their common fields are encoded once."""

    def __init__(self, id: str, object: str, created: int, model: str, include_usage: bool) -> None:
        head = orjson.dumps({"id": id, "object": object, "created": created, "model": model})
        self._head = b"data: " + head[:-1]
        self._include_usage = include_usage
        self._open = self._head + b',"choices":['
        self._close = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def choice(self, choice: dict[str, Any], usage: dict[str, Any] | None = None) -> bytes:
        """`usage`: the usage so far, if every chunk reports it."""
        return self._open + orjson.dumps(choice) + self._closing(usage)

    def choice_with(self, choice: dict[str, Any], usage: dict[str, Any] | None = None, **more: object) -> bytes:
        """Return a chunk with further fields next to the choices."""
        fields = b"," + orjson.dumps(more)[1:-1] + b',"choices":['
        return self._head + fields + orjson.dumps(choice) + self._closing(usage)

    def _closing(self, usage: dict[str, Any] | None) -> bytes:
        return self._close if usage is None else b'],"usage":' + orjson.dumps(usage) + b"}\n\n"

    def end(self, usage: dict[str, Any]) -> bytes:
        """The usage, where it was asked for, and the end."""
        if not self._include_usage:
            return DONE
        return self._head + b',"choices":[],"usage":' + orjson.dumps(usage) + b"}\n\n" + DONE
