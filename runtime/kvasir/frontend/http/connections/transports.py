"""Between uvicorn and the transport: reads in pieces, and writes with fewer system calls and over HTTP/1.0."""

import asyncio
from collections.abc import Callable
from typing import Final

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

# uvloop otherwise reads up to 256 KiB, and the connection keeps what a request has not read
MAX_PIECE: Final = 16 * 1024

# each piece is parsed before the next is read
_BUFFER: Final = memoryview(bytearray(MAX_PIECE))


class Receiver(asyncio.BufferedProtocol):
    """Passes on memoryviews, which are valid during the call."""

    __slots__ = ("_on_lost", "_to")

    def __init__(self, to: asyncio.Protocol, on_lost: Callable[[], None]) -> None:
        self._to = to
        self._on_lost = on_lost

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        self._to.data_received(_BUFFER[:nbytes])  # type: ignore[arg-type]  # parsed, not kept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._to.connection_made(transport)

    def eof_received(self) -> bool | None:
        return self._to.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._to.connection_lost(exc)
        self._on_lost()

    def pause_writing(self) -> None:
        self._to.pause_writing()

    def resume_writing(self) -> None:
        self._to.resume_writing()


class HeadWithBody:
    """Transport that writes an answer's head and the first piece of its body together."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], object]) -> None:
        """`close`: called when the answer ends the connection."""
        self._transport = transport
        self._close = close
        self._head: bytes | None = None
        self.write: Callable[[bytes], object] = self._write_head
        self.is_closing = transport.is_closing

    def close(self) -> None:
        if self._head is not None:  # no body follows
            self._write_first(b"")
        self._close()

    def _write_head(self, head: bytes) -> None:
        self._head = head
        self.write = self._write_first

    def _write_first(self, piece: bytes) -> None:
        assert self._head is not None
        self.write = self._transport.write
        self._transport.writelines((self._head, piece))
        self._head = None


class Unchunked:
    """Sends an answer over HTTP/1.0, which has no chunks."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._endless = False

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            self._endless = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if self._endless:
                self._cycle.chunked_encoding = False
        elif self._endless and message["type"] == "http.response.body":
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)
