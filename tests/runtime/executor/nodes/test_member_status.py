import sys
import threading
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest

from kvasir.executor.nodes.member_status import MemberCollector, MemberStatus
from kvasir.executor.processes.worker_messages import FrameKind
from kvasir_contract.phases import STARTUP_LIMIT, Phase
from kvasir_contract.reasons import Reason
from runtime.fake_clock import FakeClock


def status_at(clock: FakeClock) -> MemberStatus:
    return MemberStatus("engine-0-node-1-ab", 0, heartbeat_timeout=10.0, clock=clock)


def phases(status: MemberStatus) -> Iterator[Phase]:
    for phase in (Phase.STARTING, Phase.LOADING):
        status.enter(phase)
        yield phase


def test_member_is_ready_with_loaded_workers_and_a_leader() -> None:
    status = status_at(FakeClock(100.0))
    for phase in phases(status):
        assert status.unready_reason() == f"not ready: {phase}"
        assert status.trouble() is None
    status.enter(Phase.READY)
    assert status.unready_reason() is None
    status.problem = lambda: "node 0 is lost"
    assert status.unready_reason() == "node 0 is lost"
    assert status.trouble() is None


def test_start_without_progress_is_trouble_unless_the_node_waits() -> None:
    clock = FakeClock(100.0)
    status = status_at(clock)
    status.enter(Phase.LOADING)
    status.advance(1, 2)
    clock.now += STARTUP_LIMIT + 1
    assert status.trouble() == "Loading without progress for 901 s"
    status.wait()
    assert status.trouble() is None
    assert status.report().message == "waits for the other nodes"
    status.enter(Phase.LOADING)
    assert status.trouble() is None
    clock.now += STARTUP_LIMIT + 1
    assert status.trouble() is not None


def test_liveness_follows_the_slowest_worker() -> None:
    clock = FakeClock(100.0)
    status = status_at(clock)
    status.enter(Phase.READY)
    clock.now += 10_000
    assert status.trouble() is None  # idle
    status.took(FrameKind.STEP)
    clock.now += 100
    status.took(FrameKind.STEP)
    status.took(FrameKind.LATE_INPUT)  # has no reply
    assert status.trouble() is None
    clock.now += 30
    assert status.trouble() == "the workers have not replied for 130 s"
    status.enter(Phase.DRAINING)
    assert status.trouble() == "the workers have not replied for 130 s"
    assert status.unready_reason() == "not ready: Draining"
    status.answered()
    assert status.trouble() is None
    status.answered()
    status.took(FrameKind.COMMAND)  # memory is allocated, kernels are compiled
    clock.now += 130
    assert status.trouble() is None


def test_liveness_is_asked_while_frames_come_and_go() -> None:
    status = status_at(FakeClock(100.0))
    status.enter(Phase.READY)
    ends = threading.Event()

    def work() -> None:
        while not ends.is_set():
            status.took(FrameKind.STEP)
            status.answered()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert {status.trouble() for _ in range(100_000)} == {None}
    finally:
        ends.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_failed_member_reports_its_cause() -> None:
    status = status_at(FakeClock(100.0))
    status.enter(Phase.FAILED, "node 0 is lost")
    assert status.trouble() == "the node failed: node 0 is lost"
    report = status.report()
    assert (report.phase, report.message, report.rank) == (Phase.FAILED, "node 0 is lost", 0)


def test_rejected_key_is_a_reason() -> None:
    status = status_at(FakeClock(100.0))
    status.problem = lambda: "the handshake failed"
    assert status.report().reason is None
    status.is_refused = lambda: True
    assert status.report().reason is Reason.LINK_REFUSED
    assert status.report().message == "the handshake failed"


def test_metrics_name_node_and_engine() -> None:
    status = status_at(FakeClock(100.0))
    status.enter(Phase.LOADING)
    status.took(FrameKind.STEP)
    registry = CollectorRegistry()
    registry.register(MemberCollector(status, "demo", 1))
    text = generate_latest(registry).decode()
    assert 'kvasir:node_frames_total{engine="0",model_name="demo",node="1"} 1.0' in text
    assert 'kvasir:node_startup_seconds{engine="0",model_name="demo",node="1",phase="Starting"} 0.0' in text
