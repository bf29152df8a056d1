"""The load client never repeats a request, and describes failures."""

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
    """Responds with the statuses of `script` in turn, then with 200. None closes the connection instead."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.script: list[int | None] = []
        self.asked = 0
        self.connections = 0


class Handler(LoopbackHandler):
    server: Service

    def setup(self) -> None:
        super().setup()
        with self.server.lock:
            self.server.connections += 1

    def do_POST(self) -> None:
        self.body()
        with self.server.lock:
            self.server.asked += 1
            status = self.server.script.pop(0) if self.server.script else 200
        if status is None:
            self.close_connection = True
            return
        body = b'{"choices": []}' if status == 200 else b"no engine is ready"
        self.send(status, body)


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
