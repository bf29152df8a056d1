"""A server of the OpenAI API without a model: it gives scripted answers and records its requests."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Event = dict[str, Any]


def sse(*events: Event, done: bool = True) -> bytes:
    """A streamed answer; without `done` it ends too early."""
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return (text + "data: [DONE]\n\n" * done).encode()


def text_chunk(text: str, index: int = 0, finish_reason: str | None = None) -> Event:
    return {"choices": [{"index": index, "text": text, "finish_reason": finish_reason}]}


class FakeServer(ThreadingHTTPServer):
    """`answers`: status and body for each path; asked for another path it answers 404."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answers: dict[str, tuple[int, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = {"/v1/models": (200, b'{"data": [{"id": "m"}]}'), **answers}
        self.keys: list[bytes] = []
        self.bodies: list[Event] = []
        self.live = 0
        self.most_live = 0
        self.lock = threading.Lock()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


@contextmanager
def fake_server(answers: dict[str, tuple[int, bytes]]) -> Iterator[FakeServer]:
    with FakeServer(answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.bodies.append(body)
            self.server.live += 1
            self.server.most_live = max(self.server.most_live, self.server.live)
        try:
            self._answer()
        finally:
            with self.server.lock:
                self.server.live -= 1

    def _answer(self) -> None:
        self.server.keys.append(self.headers.get("Authorization", "").encode("latin-1"))
        status, body = self.server.answers.get(self.path, (404, b'{"error": {"message": "no such path"}}'))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...
