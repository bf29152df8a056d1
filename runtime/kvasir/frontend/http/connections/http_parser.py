"""httptools' parser, which ignores offers to upgrade the protocol (RFC 9110, 7.8), as Java's client sends them."""

from typing import Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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
