"""A store with the HTTP API of S3 on loopback: as much as a download takes, without signatures."""

import hashlib
from collections import Counter
from contextlib import AbstractContextManager
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from loopback_server import LoopbackHandler, LoopbackServer, serving


class _Handler(LoopbackHandler):
    server: "FakeBucket"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        bucket, _, path = parts.path.lstrip("/").partition("/")
        if self.server.status:
            return self._error(self.server.status, "Refused")
        if bucket != "models":
            return self._error(404, "NoSuchBucket")
        if not path:
            return self._list(parse_qs(parts.query).get("prefix", [""])[0])
        content, headers = self.server.files[path], {"ETag": self.server.tags[path]}
        headers["Last-Modified"] = "Sat, 28 Nov 2026 12:00:00 GMT"
        if self.headers.get("If-Match", headers["ETag"]) != headers["ETag"]:
            return self._error(412, "PreconditionFailed")
        status, start = 200, 0
        if "Range" in self.headers:
            status, start = 206, int(self.headers["Range"].removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.server.sent[path] += len(content) - start
        return self.send(status, content[start:], headers)

    def _list(self, prefix: str) -> None:
        entries = "".join(
            f"<Contents><Key>{escape(path)}</Key><LastModified>2026-11-28T12:00:00.000Z</LastModified>"
            f"<ETag>{escape(self.server.tags[path])}</ETag><Size>{len(content)}</Size></Contents>"
            for path, content in self.server.files.items()
            if path.startswith(prefix)
        )
        self.send(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode())

    def _error(self, status: int, code: str) -> None:
        self.send(status, f"<Error><Code>{code}</Code></Error>".encode())


class FakeBucket(LoopbackServer):
    def __init__(self) -> None:
        super().__init__(_Handler)
        self.files: dict[str, bytes] = {}
        self.tags: dict[str, str] = {}
        self.status = 0
        """The status of every answer, if it is not 0."""
        self.sent: Counter[str] = Counter()

    def put(self, path: str, content: bytes) -> None:
        self.files[path] = content
        self.tags[path] = f'"{hashlib.md5(content).hexdigest()}"'


def running() -> AbstractContextManager[FakeBucket]:
    return serving(FakeBucket())
