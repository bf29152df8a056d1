import http.client
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kvasir.config.options import ConfigError
from kvasir.config.process_settings import OpsConfig
from kvasir.engine.engine_collector import EngineCollector
from kvasir.engine.handover.hand_over import HandOver
from kvasir.engine.health.engine_status import LINK_PATIENCE, EngineStatus
from kvasir.engine.health.step_trace import StepPhase
from kvasir.link.protocol import Progress
from kvasir.process import ops_server
from kvasir.process.ops_server import OpsServer
from kvasir.wire.heartbeats import step_age_limit
from kvasir.wire.peer import LinkProblem
from kvasir.worker.step import ScheduledRow, StepInput
from kvasir_contract import status_report as contract
from kvasir_contract.phases import STARTUP_LIMIT, Phase
from kvasir_contract.reasons import Reason
from kvasir_contract.status_report import StatusReport
from runtime.engine.core_harness import CoreHarness, add_request
from runtime.fake_clock import FakeClock

HEARTBEAT_TIMEOUT = 25.0
STEP_LIMIT = step_age_limit(HEARTBEAT_TIMEOUT)


@pytest.fixture
def status(clock: FakeClock) -> EngineStatus:
    return EngineStatus("engine-3-abc", 3, HEARTBEAT_TIMEOUT, clock)


@pytest.fixture
def collector(status: EngineStatus) -> EngineCollector:
    return EngineCollector(status, "demo")


@pytest.fixture
def ops(status: EngineStatus, collector: EngineCollector) -> Iterator[OpsServer]:
    registry = CollectorRegistry()
    registry.register(collector)
    server = OpsServer(OpsConfig(ops_port=0), status, partial(generate_latest, registry))
    yield server
    server.close()


def get(ops: OpsServer, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", ops.port, timeout=60)
    connection.request(method, path)
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_the_engine_is_ready_in_the_ready_phase_only(ops: OpsServer, status: EngineStatus) -> None:
    for phase in Phase:
        status.enter(phase)
        code, _ = get(ops, "/health/ready")
        assert code == (200 if phase is Phase.READY else 503), phase


def test_a_start_up_is_alive_while_it_progresses(ops: OpsServer, status: EngineStatus, clock: FakeClock) -> None:
    status.enter(Phase.LOADING)
    for done in range(3):
        clock.now += STARTUP_LIMIT - 1
        assert get(ops, "/health/live")[0] == 200
        status.advance(Progress(done, 10))
    clock.now += STARTUP_LIMIT + 1
    code, reason = get(ops, "/health/live")
    assert (code, reason) == (503, "Loading without progress for 901 s\n")


def test_a_stuck_step_fails_both_probes(ops: OpsServer, status: EngineStatus, clock: FakeClock) -> None:
    status.enter(Phase.READY)
    status.beat(busy=False)
    clock.now += 1e6
    assert get(ops, "/health/live")[0] == get(ops, "/health/ready")[0] == 200
    status.beat(busy=True)
    assert get(ops, "/health/live")[0] == 200
    clock.now += STEP_LIMIT + 1
    assert get(ops, "/health/live") == (503, "the current step has been running for 301 s\n")
    assert get(ops, "/health/ready")[0] == 503


def test_a_dead_engine_is_not_alive(ops: OpsServer, status: EngineStatus) -> None:
    status.enter(Phase.FAILED, "device lost")
    assert get(ops, "/health/live") == (503, "the engine failed: device lost\n")


def test_a_port_without_free_descriptors_does_not_spin(ops: OpsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    failures = iter([OSError(24, "Too many open files")] * 3)

    def accept(server: socketserver.TCPServer) -> tuple[socket.socket, Any]:
        for failure in failures:
            raise failure
        return socketserver.TCPServer.get_request(server)

    monkeypatch.setattr("kvasir.process.ops_server.ThreadingHTTPServer.get_request", accept)
    monkeypatch.setattr("kvasir.process.ops_server.time.sleep", pauses.append)
    assert get(ops, "/health/live")[0] in (200, 503)
    assert pauses == [ops_server.RETRY_SECONDS] * 3


def report(ops: OpsServer) -> StatusReport:
    code, body = get(ops, "/status")
    assert code == 200
    return StatusReport.from_json(body.encode())


def test_the_status_tells_phase_and_progress(ops: OpsServer, status: EngineStatus) -> None:
    status.enter(Phase.LOADING)
    status.advance(Progress(3, 10))
    status.live_requests = 2
    status.links = lambda: ("10.0.0.1",)
    assert report(ops) == StatusReport(
        phase=Phase.LOADING,
        progress=contract.ReportedProgress(3, 10),
        live_requests=2,
        links=("10.0.0.1",),
        incarnation="engine-3-abc",
        rank=3,
    )
    status.enter(Phase.WARMING)
    assert report(ops).progress is None


def test_the_status_shows_why_no_frontend_accepts_the_engine(
    ops: OpsServer, status: EngineStatus, clock: FakeClock
) -> None:
    status.link_problem = lambda: LinkProblem("another model", refused=True)
    assert (status.reason, status.message) == (None, ""), "a frontend may start at the same moment"
    clock.now += LINK_PATIENCE
    assert (status.reason, status.message) == (Reason.LINK_REFUSED, "another model")
    status.link_problem = lambda: LinkProblem("no frontend answers")
    assert (status.reason, status.message) == (None, "no frontend answers")


def test_metrics_carry_the_names_and_labels_of_vllm(
    ops: OpsServer, status: EngineStatus, collector: EngineCollector
) -> None:
    status.startup_seconds[Phase.LOADING] = 1.5
    status.unknown_messages = lambda: 3
    collector.hand_over = HandOver()
    collector.hand_over.num_fetched_blocks, collector.hand_over.num_failed_fetches = 25, 1
    engine = CoreHarness(num_blocks=16, max_num_seqs=1)
    collector.core = engine.core
    engine.add(add_request("a", [1, 2, 3, 4, 5], 10))
    engine.add(add_request("b", [1, 2, 3, 4, 5], 10))
    engine.step()
    engine.step()
    _, text = get(ops, "/metrics")
    labels = '{engine="3",model_name="demo"}'
    for line in (
        f"vllm:num_requests_running{labels} 1.0",
        f"vllm:num_requests_waiting{labels} 1.0",
        f"vllm:kv_cache_usage_perc{labels} 0.125",
        f"vllm:num_preemptions_total{labels} 0.0",
        f"vllm:corrupted_requests_total{labels} 0.0",
        f"vllm:prompt_tokens_cached_total{labels} 0.0",
        f"vllm:prompt_tokens_total{labels} 5.0",
        f"vllm:generation_tokens_total{labels} 2.0",
        f"vllm:prefix_cache_queries_total{labels} 5.0",
        f"vllm:prefix_cache_hits_total{labels} 0.0",
        'kvasir:engine_startup_seconds{engine="3",model_name="demo",phase="Loading"} 1.5',
        f"kvasir:kv_blocks_fetched_total{labels} 25.0",
        f"kvasir:kv_fetches_failed_total{labels} 1.0",
        f"kvasir:unknown_messages_total{labels} 3.0",
    ):
        assert line in text


def test_metrics_of_steps_are_cumulative_histograms(
    ops: OpsServer, status: EngineStatus, collector: EngineCollector
) -> None:
    engine = CoreHarness(num_blocks=16)
    collector.core, engine.core.trace = engine.core, status.trace
    for name in "ab":
        engine.add(add_request(name, [ord(name), 2, 3, 4, 5], 2))
    for step in (1, 2):
        status.trace.begin(step)
        engine.step()
        status.trace.end()
    _, text = get(ops, "/metrics")
    labels = 'engine="3",model_name="demo"'
    for line in (
        'vllm:iteration_tokens_total_bucket{engine="3",le="8.0",model_name="demo"} 1.0',
        'vllm:iteration_tokens_total_bucket{engine="3",le="+Inf",model_name="demo"} 2.0',
        f"vllm:iteration_tokens_total_sum{{{labels}}} 12.0",
        'kvasir:step_requests_bucket{engine="3",le="2.0",model_name="demo"} 2.0',
        f"kvasir:step_requests_sum{{{labels}}} 4.0",
        f"kvasir:step_seconds_count{{{labels}}} 2.0",
        'vllm:cache_config_info{block_size="4",enable_prefix_caching="',
    ):
        assert line in text
    for phase in StepPhase:
        assert f'kvasir:step_phase_seconds_total{{{labels},phase="{phase}"}}' in text


def test_the_age_of_the_current_step_is_a_gauge(
    ops: OpsServer, status: EngineStatus, collector: EngineCollector, clock: FakeClock
) -> None:
    collector.core = CoreHarness(num_blocks=16).core
    gauge = 'kvasir:engine_step_age_seconds{engine="3",model_name="demo"}'
    status.trace.begin(7)
    clock.now += 2.5
    status.trace.enter(StepPhase.EXECUTE)
    assert f"{gauge} 2.5" in get(ops, "/metrics")[1]
    status.trace.end()
    assert f"{gauge} 0.0" in get(ops, "/metrics")[1]


def test_the_status_tells_the_current_step(ops: OpsServer, status: EngineStatus, clock: FakeClock) -> None:
    status.trace.begin(7)
    clock.now += 2.5
    status.trace.enter(StepPhase.EXECUTE, StepInput([], [], [ScheduledRow("a", 3, 1, [])]))
    batch = "1 row, 1 token, the longest a (1 after 3 tokens)"
    assert report(ops).step == contract.RunningStep(7, "execute", 2.5, batch)
    status.trace.end()
    assert report(ops).step is None


def test_metrics_answer_before_the_engine_is_built(ops: OpsServer) -> None:
    code, text = get(ops, "/metrics")
    assert code == 200
    assert "vllm:" not in text


def test_unknown_pages_and_other_methods_are_refused(ops: OpsServer) -> None:
    assert get(ops, "/v1/models")[0] == 404
    assert get(ops, "/status", "POST")[0] == 404
    assert get(ops, "/status?pretty", "HEAD") == (200, "")


def test_a_client_that_says_nothing_does_not_hold_up_the_probes(ops: OpsServer) -> None:
    with socket.create_connection(("127.0.0.1", ops.port)):
        assert get(ops, "/health/live")[0] == 200


def test_a_port_in_use_is_told_with_the_option_that_sets_it(ops: OpsServer, status: EngineStatus) -> None:
    with pytest.raises(ConfigError, match=rf"127.0.0.1:{ops.port}: .*in use; choose another --ops-port"):
        OpsServer(OpsConfig(ops_port=ops.port), status, bytes)


def test_an_address_of_another_machine_names_its_option(status: EngineStatus) -> None:
    with pytest.raises(ConfigError, match="--ops-host"):
        OpsServer(OpsConfig(ops_host="no-such-host.invalid", ops_port=0), status, bytes)


def test_waiting_for_probes_uses_no_cpu(ops: OpsServer) -> None:
    cpu = time.process_time()
    threading.Event().wait(0.3)
    assert time.process_time() - cpu < 0.05


def test_closing_ends_the_thread_and_frees_the_port(status: EngineStatus) -> None:
    server = OpsServer(OpsConfig(ops_port=0), status, bytes)
    server.close()
    assert "ops" not in {thread.name for thread in threading.enumerate()}
    OpsServer(OpsConfig(ops_port=server.port), status, bytes).close()
