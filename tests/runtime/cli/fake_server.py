"""A server of the OpenAI API without a model: it gives scripted answers and records its requests."""

import json
import time
from contextlib import AbstractContextManager
from typing import Any

from loopback_server import LoopbackHandler, LoopbackServer, serving

Event = dict[str, Any]


def sse(*events: Event, done: bool = True) -> bytes:
    """A streamed answer; without `done` it ends too early."""
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return (text + "data: [DONE]\n\n" * done).encode()


def text_chunk(text: str, index: int = 0, finish_reason: str | None = None) -> Event:
    return {"choices": [{"index": index, "text": text, "finish_reason": finish_reason}]}


class FakeServer(LoopbackServer):
    """`answers`: status and body for each path; asked for another path it answers 404."""

    def __init__(self, answers: dict[str, tuple[int, bytes]]) -> None:
        super().__init__(_Handler)
        self.answers = {"/v1/models": (200, b'{"data": [{"id": "m"}]}'), **answers}
        self.keys: list[bytes] = []
        self.bodies: list[Event] = []
        self.hold_seconds = 0.0
        """Before the answer to each POST."""
        self.live = 0
        self.most_live = 0


def fake_server(answers: dict[str, tuple[int, bytes]]) -> AbstractContextManager[FakeServer]:
    return serving(FakeServer(answers))


class _Handler(LoopbackHandler):
    server: FakeServer
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        body = json.loads(self.body())
        with self.server.lock:
            self.server.bodies.append(body)
            self.server.live += 1
            self.server.most_live = max(self.server.most_live, self.server.live)
        time.sleep(self.server.hold_seconds)
        self._answer()

    def end_headers(self) -> None:
        """End the request before the client has its whole answer: the client may send the next one at once."""
        super().end_headers()
        if self.command == "POST":
            with self.server.lock:
                self.server.live -= 1

    def _answer(self) -> None:
        self.server.keys.append(self.headers.get("Authorization", "").encode("latin-1"))
        status, body = self.server.answers.get(self.path, (404, b'{"error": {"message": "no such path"}}'))
        kind = "text/event-stream" if body.startswith((b"data:", b"event:", b":")) else "application/json"
        self.send(status, body, {"Content-Type": kind})
