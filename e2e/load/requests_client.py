"""Sends chat requests to a service until standard input ends: `python requests_client.py http://demo demo`.

It is copied into a pod, so it uses only the standard library. Half of the workers send short requests, and the
others read streams of many tokens. In both halves, every second worker opens a connection per request, and the
others keep theirs. Requests are never repeated: every result is counted and described that is not a complete answer
with status 200, or that is not equal to the first answer of its kind. It prints "started" when every worker has
received its first answer, and a report as JSON at the end.
"""

import argparse
import contextlib
import http.client
import json
import select
import socket
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

PAUSE_SECONDS = 0.1
"""Pause between two requests of a worker, so that the load is steady and leaves CPU time for the service."""
TIMEOUT_SECONDS = 60.0
MAX_DESCRIBED = 20
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer sk-load"}
"""The key is that of mutable_fields.KEY. A service without keys ignores it."""


STREAMED_TOKENS = 256


class Report:
    """Counts of all workers, and the answer that each kind of request gets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[bool, str] = {}
        self.sent = 0
        self.failed = 0
        self.failures: list[dict[str, Any]] = []

    def add(self, failure: dict[str, Any] | None) -> None:
        with self._lock:
            self.sent += 1
            if failure is not None:
                self.failed += 1
                self.failures = [*self.failures, failure][:MAX_DESCRIBED]

    def expected(self, streamed: bool, text: str) -> str:
        """Return the first text of this kind."""
        with self._lock:
            return self._texts.setdefault(streamed, text)


class Worker(threading.Thread):
    """Sends requests one after the other, until `stop` is set or `max_requests` are sent."""

    def __init__(
        self, url: str, model: str, number: int, max_requests: int, report: Report, stop: threading.Event
    ) -> None:
        super().__init__(daemon=True)
        parts = urlsplit(url)
        assert parts.hostname is not None
        # Resolved once, because a failure of the cluster's DNS is not a failure of the service.
        self._address = socket.gethostbyname(parts.hostname)
        self._port = parts.port or 80
        self._keep = bool(number % 2)
        self._streamed = bool(number // 2 % 2)
        question = {"messages": [{"role": "user", "content": "What is Kvasir?"}], "temperature": 0}
        length = {"max_tokens": STREAMED_TOKENS, "ignore_eos": True, "stream": True}
        self._body = json.dumps({"model": model, **question, **(length if self._streamed else {"max_tokens": 4})})
        self._max_requests = max_requests
        self._report = report
        self._stop_asked = stop
        self._connection: http.client.HTTPConnection | None = None
        self.answered = threading.Event()

    def run(self) -> None:
        for _ in range(self._max_requests):
            began = datetime.now(UTC)
            problem = self._send()
            if problem is None:
                self.answered.set()
                self._report.add(None)
            else:
                seconds = (datetime.now(UTC) - began).total_seconds()
                kind = {"kept": self._keep, "streamed": self._streamed}
                self._report.add({"at": began.isoformat(), "seconds": seconds, **kind, **problem})
                self._close()
            if not self._keep:
                self._close()
            if self._stop_asked.wait(PAUSE_SECONDS):
                break
        self._close()

    def _send(self) -> dict[str, Any] | None:
        """Send a request. Return the failure, if any."""
        try:
            connection = self._connected()
            connection.request("POST", "/v1/chat/completions", self._body, HEADERS)
            response = connection.getresponse()
            text = response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return {"status": None, "error": f"{type(error).__name__}: {error}"}
        if response.status != 200:
            return {"status": response.status, "error": text[:200]}
        answer = _answer(text, self._streamed)
        if answer is None:
            return {"status": response.status, "error": f"it is not complete: ...{text[-200:]}"}
        if answer != (expected := self._report.expected(self._streamed, answer)):
            return {"status": response.status, "error": f"it is not the first answer: {answer!r}, not {expected!r}"}
        return None

    def _connected(self) -> http.client.HTTPConnection:
        """Return the kept connection, unless the server has closed it. HTTP clients check this before they send."""
        kept = self._connection
        if kept is not None and kept.sock is not None and not select.select([kept.sock], [], [], 0)[0]:
            return kept
        self._close()
        self._connection = http.client.HTTPConnection(self._address, self._port, timeout=TIMEOUT_SECONDS)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _answer(text: str, streamed: bool) -> str | None:
    """Return the text of a complete answer."""
    try:
        if not streamed:
            return str(json.loads(text)["choices"][0]["message"]["content"])
        *events, last = [line[5:].lstrip() for line in text.splitlines() if line.startswith("data:")]
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        ended = last == "[DONE]" and choices[-1]["finish_reason"] == "length"
        return "".join(choice["delta"].get("content") or "" for choice in choices) if ended else None
    except (ValueError, KeyError, IndexError):
        return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--max-requests", type=int, default=20_000, help="of all workers")
    parser.add_argument("--max-seconds", type=float, default=600)
    parser.add_argument(
        "--linger", type=float, default=3, help="how many seconds to continue after standard input has ended"
    )
    options = parser.parse_args()
    report, stop = Report(), threading.Event()
    share = options.max_requests // options.workers
    workers = [Worker(options.url, options.model, number, share, report, stop) for number in range(options.workers)]
    for worker in workers:
        worker.start()
    started = time.monotonic()
    for worker in workers:
        worker.answered.wait(max(0.0, started + 30 - time.monotonic()))
    before = report.sent
    print("started", flush=True)
    ended = threading.Thread(target=_read_all, daemon=True)
    ended.start()
    ended.join(options.max_seconds)
    during = report.sent - before
    end = time.monotonic() + options.linger
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))
    stop.set()
    for worker in workers:
        worker.join()
    counts = {"sent": report.sent, "during": during, "failed": report.failed}
    print(json.dumps({**counts, "failures": report.failures}), flush=True)


def _read_all() -> None:
    with contextlib.suppress(OSError):
        sys.stdin.read()


if __name__ == "__main__":
    main()
