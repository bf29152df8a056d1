"""uvicorn's HTTP connection, with limits for slow clients and errors in OpenAI's form.

It cuts off clients that do not complete a head or a body that no route reads, or do not read their answers. body.py
limits the bodies that routes read.
"""

import asyncio
import logging
from typing import Any, Final

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from kvasir.frontend.errors import ApiError
from kvasir.frontend.http.bodies.body_memory import UploadQueue
from kvasir.frontend.http.connections.disconnection import Disconnection, disconnection_of
from kvasir.frontend.http.connections.transports import MAX_PIECE, HeadWithBody, HttpParser, Unchunked
from kvasir.frontend.http.refusals import Refusals, refusal_answer

log = logging.getLogger(__name__)

# Also limits trailers; the piece in which they begin does not count.
MAX_HEAD_BYTES: Final = 32 * 1024

# an empty header line takes 30 times its bytes in memory
MAX_HEADERS: Final = 256

LINGER_BYTES: Final = 256 * 1024
LINGER_SECONDS: Final = 1.0
"""Limits for dropping bytes after a refusal."""

# Pipelined requests after the current one. Reading continues meanwhile, to notice a client that leaves.
MAX_QUEUED: Final = 8


class Connection(HttpToolsProtocol):
    def __init__(
        self,
        upload_timeout: float,
        stall_timeout: float,
        upload_queue: UploadQueue,
        refusals: Refusals,
        **uvicorns: Any,
    ) -> None:
        super().__init__(**uvicorns)
        self.parser = HttpParser(self)  # type: ignore[assignment]  # all that is used of one
        self._upload_timeout = upload_timeout
        self._stall_timeout = stall_timeout
        self._upload_queue = upload_queue
        self._refusals = refusals
        self._upload_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._unread = 0
        self._parsing = False
        self._to_start: tuple[RequestResponseCycle, ASGI3Application] | None = None
        self._waits = False
        self._refused = False
        self._unanswered: list[RequestResponseCycle] = []
        """Requests without a complete answer, the oldest first; `cycle` is the newest."""
        self._receiving = False
        self._answered = self.loop.time()
        self._in_head = False
        self._unusable_bytes = 0
        """Bytes since the request, or the last piece of its body, began."""
        self._warned = False
        """The current body was late once."""

    @property
    def idle_since(self) -> float | None:
        """Return the loop's time of the last answer; None while a request is in progress."""
        return None if self._receiving or self._unanswered else self._answered

    # ------------------------------------------------------------------------------------------ uploads

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is None:  # each connection of a Unix socket is a client (access.py)
            self.client = ("", id(self))
        self._arm()

    def data_received(self, data: bytes) -> None:
        self._unusable_bytes += len(data)
        if self._refused:
            if self._unusable_bytes > LINGER_BYTES:
                self.transport.abort()
            return
        self._parsing = True
        super().data_received(data)
        self._parsing = False
        if self.transport.is_closing() or self._refused:
            return
        if self._upload_timer is None:
            if self._receiving:
                self._arm()
            elif not self._unanswered:
                self._arm_keep_alive()
        if self._receiving and self._unusable_bytes > MAX_HEAD_BYTES:
            what = "line and headers" if self._in_head else "trailers"
            message = f"the request's {what} are larger than {MAX_HEAD_BYTES} bytes: shorten them"
            self._refuse(ApiError(431, message, code="headers_too_large"))
        elif self._to_start is not None:
            self._start_or_wait(*self._to_start)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if self._parsing:
            self._to_start = cycle, app
        else:
            super()._start_asgi_task(cycle, app)

    def _start_or_wait(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if not cycle.more_body:
            self._start()
            return
        if len(cycle.body) >= MAX_PIECE:
            self.flow.pause_reading()  # until the request reads its body, or has its answer
        if not self._waits:
            self._waits = True
            self._upload_queue.add(self._start)

    def _start(self) -> None:
        if self._to_start is not None and not self._refused and not self.transport.is_closing():
            super()._start_asgi_task(*self._to_start)
        self._to_start, self._waits = None, False

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._receiving = self._in_head = True
        self._unusable_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        # no route reads trailers, and a header must not follow the body
        if not self._in_head:
            return
        if len(self.headers) == MAX_HEADERS:
            raise _TooManyHeaders
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._unusable_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        paused = self.flow.read_paused
        super().on_headers_complete()  # raises if the target is malformed
        self._in_head = False
        cycle = self.cycle
        self._unanswered.append(cycle)
        Disconnection(self.scope, self.flow.resume_reading)
        if not paused and len(self._unanswered) <= 1 + MAX_QUEUED:
            self.flow.resume_reading()
        if not self.expect_100_continue and self.scope["method"] != "HEAD":
            cycle.transport = HeadWithBody(self.transport, self._close)  # type: ignore[assignment]  # all it uses of one
        if self.scope["http_version"] == "1.0":
            cycle.send = Unchunked(cycle).send  # type: ignore[method-assign]

    def on_message_complete(self) -> None:
        self._receiving = self._warned = False
        if self._upload_timer is not None:
            self._upload_timer.cancel()
            self._upload_timer = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._in_head and len(self.headers) == MAX_HEADERS:
            message = f"the request has more than {MAX_HEADERS} headers: send fewer"
            self._refuse(ApiError(431, message, code="headers_too_large"))
            return
        what = "the chunks of its body" if self._receiving and not self._in_head else "its request line and headers"
        self._refuse(ApiError(400, f"this is not a valid HTTP/1.1 request: check {what}", code="bad_http"))

    def _client_name(self) -> str:
        host, port = self.client or ("", 0)
        return f"{host} port {port}" if host else "a client of the Unix socket"

    def _arm_keep_alive(self) -> None:
        # uvicorn arms this timer after an answer, but any bytes cancel it, such as the rest of a refused body.
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _arm(self) -> None:
        self._upload_timer = self.loop.call_later(self._upload_timeout, self._upload_is_late)

    def _upload_is_late(self) -> None:
        self._upload_timer = None
        if self.transport.is_closing() or self._refused:
            return
        if not self._receiving:  # nothing was ever sent
            self.transport.close()
        elif self.flow.read_paused or self._is_answering_earlier():  # not read yet
            self._arm()
        elif not self._in_head:
            # by the next time, the route that reads the body has answered
            if self._warned:
                self.transport.abort()
            self._warned = True
            self._arm()
        else:
            message = f"the request's headers did not arrive within {self._upload_timeout:g} s (--upload-timeout)"
            self._refuse(ApiError(408, message, code="request_timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Answer a request that no route gets, and close. In the middle of an answer only close."""
        answered = self._receiving and not self._in_head and self.cycle.response_complete
        if answered or any(cycle.response_started for cycle in self._unanswered):
            self.transport.abort()
            return
        has_head = self._receiving and not self._in_head
        request_id = self._refusals.write(self, self._client_name(), error, has_head=has_head)
        self._end_unanswered()
        self.transport.write(refusal_answer(error, request_id, self.server_state.default_headers))
        self._linger()

    def _close(self) -> None:
        if self._receiving and not self._in_head and not self.pipeline:  # incomplete body
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        # To close with unread bytes resets the connection, so the client first gets time to read the answer.
        self._refused = True
        self._unusable_bytes = 0
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def shutdown(self) -> None:
        if not self._in_head:  # else the answer ends the connection, see RecordMiddleware
            super().shutdown()

    # ------------------------------------------------------------------------------------------ answers

    def on_response_complete(self) -> None:
        self._answered = self.loop.time()
        if self.cycle.response_complete:
            self.cycle.body = bytearray()  # no route reads it
        for cycle in self._unanswered:
            if cycle.response_complete:
                cycle.transport = self.transport  # HeadWithBody refers to this connection
        self._unanswered = [cycle for cycle in self._unanswered if not cycle.response_complete]
        super().on_response_complete()

    def _is_answering_earlier(self) -> bool:
        return len(self._unanswered) > (0 if self._in_head else 1)

    def _end_unanswered(self) -> None:
        # uvicorn notifies only the route of the last request
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.transport = self.transport
            cycle.message_event.set()
            disconnection_of(cycle.scope).report()
        self._unanswered.clear()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_stall()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_stall()
        self._unset_keepalive_if_required()
        if self._upload_timer is not None:
            self._upload_timer.cancel()
            self._upload_timer = None
        self._end_unanswered()
        self.parser.close()  # type: ignore[attr-defined]
        super().connection_lost(exc)

    def _watch_reader(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self._stall_timeout, self._reader_stalls)

    def _reader_stalls(self) -> None:
        self._stall_timer = None
        if self.transport.get_write_buffer_size() < self._unread:  # slow, but reading
            self._watch_reader()
            return
        name, limit = self._client_name(), self._stall_timeout
        log.info("%s read nothing of its answer for %g s: closing its connection", name, limit)
        self.transport.abort()

    def _cancel_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


class _TooManyHeaders(Exception):
    pass
