"""Parses what a client sends: httptools' parser, to which an offer to upgrade is nothing. One per connection.

A client may offer another protocol with any request, as Java's does with HTTP/2, and a server may ignore that
(RFC 9110, 7.8). httptools takes such a request to be the connection's last: it drops the body and understands
nothing that follows. So the head is parsed again without its offer, by a new parser, and the rest by that one.
"""

from typing import Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

OFFERED: Final = frozenset({b"upgrade", b"http2-settings"})
"""The headers of an offer, each of which `Connection` names too."""


class HttpParser:
    """Has the methods of httptools' parser that uvicorn calls. A head with an offer is parsed twice and completes
    only without it."""

    def __init__(self, connection: HttpToolsProtocol) -> None:
        self._connection = connection
        self.on_message_begin = connection.on_message_begin
        self.on_url = connection.on_url
        self.on_header = connection.on_header
        self.on_body = connection.on_body
        self._begin()

    def feed_data(self, data: bytes) -> None:
        """Parse bytes. Raises HttpParserError for malformed HTTP/1, and HttpParserUpgrade for CONNECT."""
        rest = memoryview(data)
        while True:
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if not self._offered():
                    raise
                rest = rest[upgrade.args[0] :]
                head = self._head_without_offer()
                self._begin()
                self._parser.feed_data(head)

    def should_upgrade(self) -> bool:
        return False

    def on_headers_complete(self) -> None:
        if not self._offered():
            self._connection.on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._offered():
            self._connection.on_message_complete()

    def close(self) -> None:
        """No more comes: without this, only the garbage collector would find the connection."""
        del self._parser, self.get_http_version, self.get_method, self.should_keep_alive

    def _begin(self) -> None:
        self._parser = parser = httptools.HttpRequestParser(self)
        # More bytes after a request that announced to be the last one do not make that request invalid.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.get_http_version = parser.get_http_version
        self.get_method = parser.get_method
        self.should_keep_alive = parser.should_keep_alive

    def _offered(self) -> bool:
        return self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT"

    def _head_without_offer(self) -> bytes:
        """The last head, which may have come in many pieces."""
        version = self._parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self._parser.get_method(), self._connection.url, version)]
        for name, value in self._connection.headers:
            if name == b"connection":
                value = b",".join(option for option in value.split(b",") if option.strip().lower() not in OFFERED)
            if name not in OFFERED and (value or name != b"connection"):
                lines.append(b"%s: %s" % (name, value.strip()))
        return b"\r\n".join([*lines, b"", b""])
