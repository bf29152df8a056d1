"""Streams a generation to a client as server-sent events.

The head is sent with the first event, or after HEAD_SECONDS; errors before it are HTTP errors, later ones events.
While no event comes, comments keep the connection open, and report the progress of a starting engine.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from math import inf
from typing import Final, Protocol

import orjson
from msgspec.json import encode
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from kvasir.frontend.answer_parts import Usage
from kvasir.frontend.errors import ApiError, as_api_error
from kvasir.frontend.http.connections.disconnection import LiveRequests
from kvasir.frontend.telemetry.request_log import RequestRecord

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"

HEAD_SECONDS: Final = 5.0
KEEP_ALIVE_SECONDS: Final = 15.0  # between comments; proxies close silent streams after 30 to 100 s
KEEP_ALIVE: Final = b": keep-alive\n\n"
PROGRESS_SECONDS: Final = 5.0  # between comments about an engine's progress

_HEADERS: Final = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"content-type", b"text/event-stream; charset=utf-8"),
)


class EventStream(Response):
    """Sends each item of `events` at once. The last one ends with DONE."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        live: LiveRequests,
        error_event: Callable[[ApiError], bytes] | None = None,
        waits_for: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`error_event`: writes the last event of a failed stream. `waits_for`: returns a comment while the request
        waits for an engine, else None.
        """
        self.status_code = 200
        self.background = None
        self.raw_headers = [*_HEADERS]
        self._events = events
        self._live = live
        self._error_event = error_event or _error_event
        self._waits_for = waits_for

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        output = _Output(head, send, self._waits_for)
        last = b""
        try:
            async with self._live.watch(scope), aclosing(self._events) as events:
                async for event in events:
                    if event.endswith(DONE):
                        last = event
                    else:
                        await output.write(event)
        except ClientDisconnect:
            return
        except Exception as error:
            if not output.started:
                raise
            last = self._error_event(_reported(error, scope["state"]["record"]))
        finally:
            output.stop_comments()
        await output.write(last, more=False)


class _Output:
    def __init__(self, head: Message, send: Send, waits_for: Callable[[], str | None]) -> None:
        self.started = False
        self._head = head
        self._send = send
        self._waits_for = waits_for
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        # infinite during a write: a slow client needs no comment
        self._comment_at = self._now() + HEAD_SECONDS
        self._comment: asyncio.Task[None] | None = None
        # armed again only when it fires, so an event costs one look at the clock
        self._timer = self._loop.call_later(HEAD_SECONDS, self._wake)

    def write(self, event: bytes, more: bool = True) -> Awaitable[None]:
        """Write an event, after a comment in progress."""
        return self._write(event, more) if self._comment is None else self._write_behind_comment(event, more)

    def stop_comments(self) -> None:
        self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()
            self._comment = None

    def _wake(self) -> None:
        left = self._comment_at - self._now()
        if left <= 0:
            text = self._waits_for()
            comment, left = (KEEP_ALIVE, KEEP_ALIVE_SECONDS) if text is None else (_comment(text), PROGRESS_SECONDS)
            self._comment = self._loop.create_task(self._write(comment, True, left))
        self._timer = self._loop.call_later(min(left, KEEP_ALIVE_SECONDS), self._wake)

    async def _write_behind_comment(self, event: bytes, more: bool) -> None:
        assert self._comment is not None
        await self._comment
        self._comment = None
        await self._write(event, more)

    async def _write(self, piece: bytes, more: bool, silence: float | None = None) -> None:
        """`silence`: seconds until the next comment, by default KEEP_ALIVE_SECONDS."""
        self._comment_at = inf
        if not self.started:
            await self._send(self._head)
            self.started = True
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})
        self._comment_at = self._now() + (KEEP_ALIVE_SECONDS if silence is None else silence)


def _comment(text: str) -> bytes:
    return f": {text}\n\n".encode()


def _reported(error: Exception, record: RequestRecord) -> ApiError:
    reported = as_api_error(error, record.request_id)
    record.error = reported.message
    if reported.code == "internal_error":
        log.error("request %s failed in mid-stream", record.request_id, exc_info=error)
    return reported


def _error_event(error: ApiError) -> bytes:
    return b"data: " + error.body() + b"\n\n"


class ChunkChoice(Protocol):
    """A struct: the one choice of a chunk."""

    @property
    def finish_reason(self) -> str | None: ...


class Chunks:
    """Writes the chunks of one stream; common fields are encoded once."""

    def __init__(
        self, id: str, object: str, created: int, model: str, include_usage: bool, fingerprint: str
    ) -> None:
        """`fingerprint`: system_fingerprint of each choice's last chunk, as in vLLM."""
        head = orjson.dumps({"id": id, "object": object, "created": created, "model": model})
        self._head = b"data: " + head[:-1]
        self._include_usage = include_usage
        self._open = self._head + b',"choices":['
        self._last_head = self._head + b',"system_fingerprint":' + orjson.dumps(fingerprint)
        self._last_open = self._last_head + b',"choices":['
        self._close = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def choice(self, choice: ChunkChoice, usage: Usage | None = None) -> bytes:
        """`usage`: so far, if every chunk reports it."""
        opened = self._open if choice.finish_reason is None else self._last_open
        return opened + encode(choice) + self._closing(usage)

    def choice_with(self, choice: ChunkChoice, usage: Usage | None = None, **more: object) -> bytes:
        """Return a chunk with further fields next to the choices."""
        fields = b"," + orjson.dumps(more)[1:-1] + b',"choices":['
        return self._head + fields + encode(choice) + self._closing(usage)

    def _closing(self, usage: Usage | None) -> bytes:
        return self._close if usage is None else b'],"usage":' + encode(usage) + b"}\n\n"

    def end(self, usage: Usage) -> bytes:
        """Return the usage, if requested, and the end."""
        if not self._include_usage:
            return DONE
        return self._last_head + b',"choices":[],"usage":' + encode(usage) + b"}\n\n" + DONE
