"""A Hugging Face Hub on loopback: as much of its HTTP API as a download takes."""

import hashlib
import json
from contextlib import AbstractContextManager

from loopback_server import LoopbackHandler, LoopbackServer, serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_letmein"

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
            org, name, kind, revision = path.removeprefix("api/models/").split("/", 3)
            return self._api(f"{org}/{name}", kind, revision)
        org, name, _, _, file = path.split("/", 4)
        return self._file(self.server.models[f"{org}/{name}"][file])

    def _api(self, repository: str, kind: str, revision: str) -> None:
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
        return self.send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _file(self, content: bytes) -> None:
        etag = hashlib.sha1(content).hexdigest()
        self.send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def _refuse(self, status: int, code: str) -> None:
        self.send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})


class FakeHub(LoopbackServer):
    def __init__(self) -> None:
        super().__init__(_Handler)
        self.models: dict[str, Files] = {}
        self.gated: set[str] = set()
        self.status = 0
        """The status of every answer, if it is not 0."""
        self.requested: list[str] = []


def running() -> AbstractContextManager[FakeHub]:
    return serving(FakeHub())
