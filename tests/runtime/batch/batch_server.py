"""A server for batches: a function of the test answers each request, and may hold it back."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, object] | None
"""Status and JSON; None closes the connection without an answer."""


class BatchServer(ThreadingHTTPServer):
    """`answer` gets the path and the body of each POST, in a thread of its own."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 512

    def __init__(self, answer: Callable[[str, Any], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.described: object = {"error": "there is no description"}
        """The answer to GET /openapi.json."""
        self.prompts: list[str] = []
        self.keys: set[str | None] = set()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def batch_server(answer: Callable[[str, Any], Answer] = lambda path, body: (200, body)) -> Iterator[BatchServer]:
    with BatchServer(answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: BatchServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(200, self.server.described)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.prompts.append(body.get("prompt"))
            self.server.keys.add(self.headers.get("Authorization"))
        if (answer := self.server.answer(self.path, body)) is None:
            self.close_connection = True
        else:
            self._send(*answer)

    def _send(self, status: int, answer: object) -> None:
        content = json.dumps(answer).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:  # the client was interrupted
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None: ...
