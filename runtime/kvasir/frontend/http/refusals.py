"""The server's own answers to requests that no route gets, and their log lines."""

import logging
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from kvasir.frontend.errors import ApiError
from kvasir.frontend.telemetry.request_log import RequestRecord

log = logging.getLogger(__name__)

# a client without a key can cause thousands a second
MAX_LINES_PER_SECOND: Final = 10


class Refusals:
    def __init__(self, *, logged: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._logged = logged
        self._clock = clock
        self._began = 0.0
        self._lines = 0
        self._omitted = 0

    def write(self, connection: HttpToolsProtocol, client: str, error: ApiError, *, has_head: bool) -> str:
        """Log the refusal of the incoming request, and return its id."""
        # a started request has its own line with the error
        method = path = "-"
        if has_head:
            started: RequestRecord | None = connection.scope["state"].get("record")
            if started is not None:
                started.status, started.error = error.status, error.message
                return started.request_id
            method, path = connection.scope["method"], connection.scope["path"]
        elif connection.headers:  # the line before them is complete
            method = connection.parser.get_method().decode()
            path = connection.url.partition(b"?")[0].decode("latin-1")
        record = RequestRecord(uuid.uuid4().hex, method, path)
        record.status, record.error, record.client = error.status, error.message, client
        if self._logged and self._has_room():
            record.write()
        return record.request_id

    def _has_room(self) -> bool:
        now = self._clock()
        if now - self._began >= 1.0:
            if self._omitted:
                log.info("%d more requests were refused and not logged", self._omitted)
            self._began, self._lines, self._omitted = now, 0, 0
        if self._lines == MAX_LINES_PER_SECOND:
            self._omitted += 1
            return False
        self._lines += 1
        return True


def refusal_answer(error: ApiError, request_id: str, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    body = error.body()
    headers = [
        *default_headers,
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode("latin-1")),
        (b"connection", b"close"),
    ]
    return STATUS_LINE[error.status] + b"".join(b"%s: %s\r\n" % header for header in headers) + b"\r\n" + body
