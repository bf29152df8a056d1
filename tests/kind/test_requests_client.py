"""The load client never repeats a request, and describes failures and wrong answers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopback_server import LoopbackHandler, LoopbackServer, serving

CLIENT = Path(__file__).parents[2] / "e2e" / "load" / "requests_client.py"


class Service(LoopbackServer):
    """Responds with the statuses of `script` in turn, then with 200. None closes the connection instead.

    Answers are those of `answers` or `streams` in turn, then complete ones.
    """

    def __init__(self) -> None:
        super().__init__(Handler)
        self.script: list[int | None] = []
        self.answers: list[str] = []
        self.streams: list[str] = []
        self.asked = 0
        self.connections = 0


class Handler(LoopbackHandler):
    server: Service

    def setup(self) -> None:
        super().setup()
        with self.server.lock:
            self.server.connections += 1

    def do_POST(self) -> None:
        streamed = json.loads(self.body()).get("stream", False)
        with self.server.lock:
            self.server.asked += 1
            status = self.server.script.pop(0) if self.server.script else 200
            answers = self.server.streams if streamed else self.server.answers
            answer = answers.pop(0) if answers else COMPLETE_STREAM if streamed else COMPLETE
        if status is None:
            self.close_connection = True
            return
        self.send(status, answer.encode() if status == 200 else b"no engine is ready")


def message(text: str) -> str:
    return json.dumps({"choices": [{"message": {"content": text}}]})


def stream(*texts: str, reason: str | None) -> str:
    """A stream of these texts, which ends if there is a reason."""
    choices: list[dict[str, Any]] = [{"delta": {"content": text}, "finish_reason": None} for text in texts]
    ends = [{"delta": {}, "finish_reason": reason}] if reason else []
    events = [json.dumps({"choices": [choice]}) for choice in (*choices, *ends)]
    return "".join(f"data: {event}\n\n" for event in (*events, *(["[DONE]"] if reason else [])))


COMPLETE = message("one two")
COMPLETE_STREAM = stream("one", " two", reason="length")


@pytest.fixture
def service() -> Iterator[Service]:
    with serving(Service()) as server:
        yield server


def requests(url: str, count: int, workers: int) -> dict[str, Any]:
    options = ("--workers", str(workers), "--max-requests", str(count), "--linger", "60")
    command = (sys.executable, str(CLIENT), url, "demo", *options)
    done = subprocess.run(command, input="", capture_output=True, text=True, check=True)
    started, report = done.stdout.splitlines()
    assert started == "started"
    found: dict[str, Any] = json.loads(report)
    return found


def test_client_counts_every_failure_and_repeats_nothing(service: Service) -> None:
    service.script = [200, 503, None]
    report = requests(service.url, 4, workers=1)
    assert (report["sent"], report["failed"], service.asked) == (4, 2, 4)
    refused, dropped = report["failures"]
    assert (refused["status"], refused["error"]) == (503, "no engine is ready")
    assert (dropped["status"], dropped["kept"]) == (None, False)
    assert dropped["error"].startswith("RemoteDisconnected")


def test_client_keeps_connections_in_half_of_its_workers(service: Service) -> None:
    report = requests(service.url, 8, workers=2)
    assert (report["sent"], report["failed"]) == (8, 0)
    assert service.connections == 4 + 1


def test_client_reads_streams_in_half_of_its_workers(service: Service) -> None:
    report = requests(service.url, 8, workers=4)
    assert (report["sent"], report["failed"]) == (8, 0)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "it is not complete: ..."),
        ("{}", "it is not complete: ...{}"),
        (message("one too"), "it is not the first answer: 'one too', not 'one two'"),
    ],
)
def test_an_incomplete_or_different_answer_is_a_failure(service: Service, answer: str, problem: str) -> None:
    service.answers = [COMPLETE, answer]
    report = requests(service.url, 3, workers=1)
    assert [failure["error"] for failure in report["failures"]] == [problem]


@pytest.mark.parametrize("reason", [None, "error", "stop"])
def test_a_stream_without_its_end_is_a_failure(service: Service, reason: str | None) -> None:
    service.streams = [COMPLETE_STREAM, stream("one", reason=reason)]
    report = requests(service.url, 9, workers=3)
    (failure,) = report["failures"]
    assert (failure["streamed"], failure["error"][:18]) == (True, "it is not complete")
