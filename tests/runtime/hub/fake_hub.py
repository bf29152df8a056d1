"""A Hugging Face Hub on loopback: as much of its HTTP API as a download takes."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_letmein"

Files = dict[str, bytes]


class _Handler(BaseHTTPRequestHandler):
    server: "FakeHub"
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, body: bool) -> None:
        path = self.path.partition("?")[0].removeprefix("/")
        self.server.requested.append(path)
        if self.server.status:
            return self._send(self.server.status, b"{}", body)
        if path.startswith("api/models/"):
            org, name, kind, revision = path.removeprefix("api/models/").split("/", 3)
            return self._api(f"{org}/{name}", kind, revision, body)
        org, name, _, _, file = path.split("/", 4)
        return self._file(self.server.models[f"{org}/{name}"][file], body)

    def _api(self, repository: str, kind: str, revision: str, body: bool) -> None:
        if repository not in self.server.models:
            return self._refuse(401, "RepoNotFound")
        if repository in self.server.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._refuse(403, "GatedRepo")
        if revision not in ("main", "v1", COMMIT):
            return self._refuse(404, "RevisionNotFound")
        files = self.server.models[repository]
        if kind == "tree":
            answer: object = [
                {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for path, content in files.items()
            ]
        else:
            answer = {"id": repository, "sha": COMMIT, "siblings": [{"rfilename": path} for path in files]}
        return self._send(200, json.dumps(answer).encode(), body, {"Content-Type": "application/json"})

    def _file(self, content: bytes, body: bool) -> None:
        etag = hashlib.sha1(content).hexdigest()
        self._send(200, content, body, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", True, {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, content: bytes, body: bool, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)


class FakeHub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models: dict[str, Files] = {}
        self.gated: set[str] = set()
        self.status = 0
        """What everything is answered with, where not 0."""
        self.requested: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def running() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
