"""`kvasir chat`: which server it asks, and with which key."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kvasir.cli import main

ANSWER = {"choices": [{"delta": {"content": "Yes."}}]}


class Server(ThreadingHTTPServer):
    """Says Yes. to everybody, and remembers the keys that it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.keys: list[bytes] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._answer("/v1/models", json.dumps({"data": [{"id": "m"}]}))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer("/v1/chat/completions", f"data: {json.dumps(ANSWER)}\n\ndata: [DONE]\n\n")

    def _answer(self, path: str, body: str) -> None:
        self.server.keys.append(self.headers.get("Authorization", "").encode("latin-1"))
        self.send_response(200 if self.path == path else 404)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        with contextlib.closing(server.socket):
            yield server
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("form", ["http://{}", "http://{}/", "http://{}/v1", "http://{}/v1/", "{}", "{}/v1"])
def test_every_way_to_write_the_address_finds_the_server(
    form: str, server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["chat", form.format(server.address), "-m", "Is it you?"]) == 0
    assert capfd.readouterr().out == "Yes.\n"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://[::1", "http://[::1 is no URL: "),
        ("ftp://x", "ftp://x is not the URL of a server: give http://HOST:PORT"),
        ("http://", "http:// is not the URL of a server: give http://HOST:PORT"),
    ],
)
def test_what_is_no_address_is_refused(url: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["chat", url, "-m", "x"]) == 2
    assert capfd.readouterr().err.startswith(f"kvasir chat: {message}")


def test_a_key_beyond_ascii_is_sent_in_utf_8(server: Server) -> None:
    assert main.main(["chat", server.address, "-m", "x", "--api-key", "schlüssel"]) == 0
    assert set(server.keys) == {"Bearer schlüssel".encode()}
