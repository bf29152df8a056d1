"""HTTP servers for tests: on loopback, in a thread, and without a log."""

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar


class LoopbackHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self) -> bytes:
        length = int(self.headers["Content-Length"])
        content = self.rfile.read(length)
        if len(content) < length:
            raise ConnectionError("the client has left in the middle of its body")
        return content

    def send(self, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send an answer, to HEAD without its body. A client that has left is not an error."""
        try:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None: ...


class LoopbackServer(ThreadingHTTPServer):
    """Listens on a free port."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, handler: type[LoopbackHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.lock = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error of a handler. A client that has left is none, and may leave after its test has ended."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"


Server = TypeVar("Server", bound=LoopbackServer)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Run the server in a thread until the end of the block."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
