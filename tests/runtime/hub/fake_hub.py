"""A Hugging Face Hub on loopback: as much of its HTTP API as a download takes."""

import hashlib
import json
import threading
from collections import Counter
from contextlib import AbstractContextManager

from loopback_server import LoopbackHandler, LoopbackServer, serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_letmein"

_PIECE_BYTES = 16 * 1024

Files = dict[str, bytes]


class _Handler(LoopbackHandler):
    server: "FakeHub"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0].removeprefix("/")
        self.server.requested.append(path)
        if self.server.status:
            return self.send(self.server.status, b"{}")
        if path.startswith("api/models/"):
            org, name, kind, revision = (path.removeprefix("api/models/") + "/revision/main").split("/")[:4]
            return self._api(f"{org}/{name}", kind, revision)
        if path.startswith("api/"):  # the library asks for more than a download takes
            return self.send(404, b"{}")
        org, name, _, _, file = path.split("/", 4)
        files = self.server.models[f"{org}/{name}"]
        return self._file(files[file]) if file in files else self._refuse(404, "EntryNotFound")

    def _api(self, repository: str, kind: str, revision: str) -> None:
        if repository not in self.server.models:
            return self._refuse(401, "RepoNotFound")
        if repository in self.server.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._refuse(403, "GatedRepo")
        if revision not in ("main", "v1", COMMIT):
            return self._refuse(404, "RevisionNotFound")
        files = self.server.models[repository]
        if kind == "tree":
            answer: object = [_entry(path, content) for path, content in files.items()]
        else:
            answer = {"id": repository, "sha": COMMIT, "siblings": [{"rfilename": path} for path in files]}
        return self.send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _file(self, content: bytes) -> None:
        etag = hashlib.sha1(content).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
        in_part = "Range" in self.headers and self.server.sends_parts
        if in_part:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
            content = content[start : end + 1]
            self.server.sent_parts += len(content)
        self._send_counted(206 if in_part else 200, content, headers)

    def _send_counted(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        name = self.path.rpartition("/")[2]
        try:
            self.send_response(status)
            for header, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(header, value)
            self.end_headers()
            for start in range(0, 0 if self.command == "HEAD" else len(content), _PIECE_BYTES):
                self.server.before_piece()
                self.wfile.write(content[start : start + _PIECE_BYTES])
                with self.server.lock:
                    self.server.sent[name] += len(content[start : start + _PIECE_BYTES])
        except OSError:
            self.close_connection = True

    def _refuse(self, status: int, code: str) -> None:
        self.send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})


def _entry(path: str, content: bytes) -> dict[str, object]:
    blob = b"blob %d\0" % len(content)
    entry: dict[str, object] = {"type": "file", "path": path, "size": len(content)}
    entry["oid"] = hashlib.sha1(blob + content).hexdigest()
    if path.endswith((".safetensors", ".gguf")):
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return entry


class FakeHub(LoopbackServer):
    def __init__(self) -> None:
        super().__init__(_Handler)
        self.models: dict[str, Files] = {}
        self.gated: set[str] = set()
        self.status = 0
        """The status of every answer, if it is not 0."""
        self.requested: list[str] = []
        self.sends_parts = True
        """Whether it heeds ranges."""
        self.sent_parts = 0
        """Bytes of answers to requests for ranges."""
        self.sent: Counter[str] = Counter()
        """Bytes of files by name, as they were written."""
        self.stop_after: int | None = None
        """Bytes of all files after which answers stall."""
        self.stalled, self.released = threading.Event(), threading.Event()

    def before_piece(self) -> None:
        if self.stop_after is not None and self.sent.total() >= self.stop_after:
            self.stalled.set()
            self.released.wait(30)


def running() -> AbstractContextManager[FakeHub]:
    return serving(FakeHub())
