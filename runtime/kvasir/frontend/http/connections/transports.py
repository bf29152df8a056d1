"""Between uvicorn, its HTTP parser and the transport: reads in pieces, fewer writes, and HTTP/1.0."""

import asyncio
from collections.abc import Callable
from typing import Final

import httptools
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

OFFERED: Final = frozenset({b"upgrade", b"http2-settings"})


class HttpParser:
    """Has the methods of httptools' parser that uvicorn calls."""

    def __init__(self, connection: HttpToolsProtocol) -> None:
        self._connection = connection
        self.on_message_begin = connection.on_message_begin
        self.on_url = connection.on_url
        self.on_header = connection.on_header
        self.on_body = connection.on_body
        self._begin()

    def feed_data(self, data: bytes) -> None:
        """Raises HttpParserError for malformed HTTP/1, and HttpParserUpgrade for CONNECT."""
        rest = memoryview(data)
        while True:
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if not self._offered():
                    raise
                # httptools would drop the rest, so a new parser gets the head without the offer, and the rest
                rest = rest[upgrade.args[0] :]
                head = self._head_without_offer()
                self._begin()
                self._parser.feed_data(head)

    def should_upgrade(self) -> bool:
        return False

    def on_headers_complete(self) -> None:
        if not self._parser.should_upgrade() or not self._offered():
            self._connection.on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._parser.should_upgrade() or not self._offered():
            self._connection.on_message_complete()

    def close(self) -> None:
        # ends a reference cycle with the connection
        del self._parser, self.get_http_version, self.get_method, self.should_keep_alive

    def _begin(self) -> None:
        self._parser = parser = httptools.HttpRequestParser(self)
        # bytes after the announced last request do not make it invalid
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.get_http_version = parser.get_http_version
        self.get_method = parser.get_method
        self.should_keep_alive = parser.should_keep_alive

    def _offered(self) -> bool:
        return self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT"

    def _head_without_offer(self) -> bytes:
        version = self._parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self._parser.get_method(), self._connection.url, version)]
        for name, value in self._connection.headers:
            if name == b"connection":
                value = b",".join(option for option in value.split(b",") if option.strip().lower() not in OFFERED)
            if name not in OFFERED and (value or name != b"connection"):
                lines.append(b"%s: %s" % (name, value.strip()))
        return b"\r\n".join([*lines, b"", b""])


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
