"""A server for batches: a function of the test answers each request, and may hold it back."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from loopback_server import LoopbackHandler, LoopbackServer, serving

Answer = tuple[int, object] | None
"""Status and JSON; None closes the connection without an answer."""


class BatchServer(LoopbackServer):
    """`answer` gets the path and the body of each POST, in a thread of its own."""

    def __init__(self, answer: Callable[[str, Any], Answer]) -> None:
        super().__init__(_Handler)
        self.answer = answer
        self.described: object = {"error": "there is no description"}
        """The answer to GET /openapi.json."""
        self.prompts: list[str] = []
        self.keys: set[str | None] = set()


def batch_server(
    answer: Callable[[str, Any], Answer] = lambda path, body: (200, body),
) -> AbstractContextManager[BatchServer]:
    return serving(BatchServer(answer))


class _Handler(LoopbackHandler):
    server: BatchServer

    def do_GET(self) -> None:
        self.send(200, json.dumps(self.server.described).encode())

    def do_POST(self) -> None:
        body = json.loads(self.body())
        with self.server.lock:
            self.server.prompts.append(body.get("prompt"))
            self.server.keys.add(self.headers.get("Authorization"))
        if (answer := self.server.answer(self.path, body)) is None:
            self.close_connection = True
        else:
            status, content = answer
            self.send(status, json.dumps(content).encode())
