import http.client
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from kvasir.config.options import ConfigError
from kvasir.config.process_settings import OpsConfig
from kvasir.frontend.status import LOOP_LIMIT_SECONDS, STARTUP_LIMIT_SECONDS, FrontendStatus
from kvasir.process.listening import has_ipv6
from kvasir.process.ops_server import OpsServer
from kvasir_contract.phases import Phase
from kvasir_contract.status_report import StatusReport
from runtime.fake_clock import FakeClock
from runtime.frontend.harness import Frontend, running_frontend


@contextmanager
def ops_of(status: FrontendStatus) -> Iterator[OpsServer]:
    with closing(OpsServer(OpsConfig(ops_port=0), status, status.metrics)) as server:
        yield server


def get(ops: OpsServer, path: str) -> tuple[int, str]:
    """From the test's thread, which runs the event loop: it stands still meanwhile."""
    connection = http.client.HTTPConnection("127.0.0.1", ops.port, timeout=60)
    with closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()


async def test_ops_port_answers_while_the_event_loop_is_busy(frontend: Frontend) -> None:
    with ops_of(frontend.status) as ops:
        assert get(ops, "/health/live") == (200, "ok\n")
        assert get(ops, "/health/ready") == (200, "ok\n")
        assert get(ops, "/status")[0] == 200
        code, metrics = get(ops, "/metrics")
    assert code == 200
    assert "kvasir:engine_usable" in metrics


def test_frontend_that_starts_is_alive_and_unready() -> None:
    clock = FakeClock()
    status = FrontendStatus(clock)
    with ops_of(status) as ops:
        clock.now = STARTUP_LIMIT_SECONDS
        assert get(ops, "/health/live")[0] == 200
        assert get(ops, "/health/ready") == (503, "the model's config and tokenizer are being loaded\n")
        assert StatusReport.from_json(get(ops, "/status")[1].encode()).phase is Phase.STARTING
        assert get(ops, "/metrics") == (200, "")
        clock.now += 1
        assert get(ops, "/health/live") == (503, "Starting for 901 s\n")


async def test_stuck_event_loop_fails_both_probes(frontend: Frontend) -> None:
    clock = FakeClock()
    status = FrontendStatus(clock)
    status.serve(frontend.service)
    clock.now = LOOP_LIMIT_SECONDS
    assert status.trouble() is None
    clock.now += 1
    assert status.trouble() == status.unready_reason() == "the event loop has been stuck for 61 s"
    status.beat()
    assert (status.trouble(), status.unready_reason()) == (None, None)


def without_demand(frontend: Frontend) -> StatusReport:
    return replace(frontend.status.report(), demand=None, load=None)


async def test_status_follows_the_engines_and_the_end() -> None:
    async with running_frontend(engine=False) as frontend:
        waiting = frontend.status.report()
        assert (waiting.phase, waiting.message) == (Phase.STARTING, "no engine has been ready yet")
        await frontend.add_engine()
        assert without_demand(frontend) == StatusReport(Phase.READY)
        frontend.server.stop(signal.SIGTERM.name)
        assert without_demand(frontend) == StatusReport(Phase.DRAINING, "the server is shutting down")


async def test_running_server_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[None] = []
    monkeypatch.setattr(FrontendStatus, "beat", lambda self: beats.append(None))
    async with running_frontend() as frontend, frontend.http() as client:
        await client.get("/health/live")
    assert beats


@pytest.mark.parametrize("host", ["*", "::1", "[::1]"])
def test_ops_port_answers_over_ipv6(host: str) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    status = FrontendStatus()
    with closing(OpsServer(OpsConfig(ops_host=host, ops_port=0), status, bytes)) as ops:
        connection = http.client.HTTPConnection("::1", ops.port, timeout=60)
        with closing(connection):
            connection.request("GET", "/health/live")
            assert connection.getresponse().status == 200


def test_ops_port_in_use_is_told_with_its_option() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match="choose another --ops-p"),
    ):
        OpsServer(OpsConfig(ops_port=taken.getsockname()[1]), FrontendStatus(), bytes)
