"""A member's process ends when it cannot pass something on, and informs the leader of the cause."""

import signal
import time
from typing import Any

import pytest

from kvasir.config.nodes import NodesConfig
from kvasir.config.options import ConfigError
from kvasir.config.process_settings import ProcessConfig
from kvasir.config.settings import DeviceConfig, EngineConfig, ModelConfig
from kvasir.executor.nodes.member_process import MemberProcess
from kvasir.executor.nodes.node_messages import Failed, FromMember, Leaving
from kvasir.executor.shared_memory.ring import SlowReaderError
from kvasir.executor.shared_memory.segment import SharedMemoryError
from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason


class FakeLeader:
    def __init__(self) -> None:
        self.sent: list[FromMember] = []

    def send(self, message: FromMember) -> None:
        self.sent.append(message)

    def close(self) -> None:
        pass


class FakeWorkers:
    def __init__(self, error: Exception) -> None:
        self._error = error
        self.killed = False

    @property
    def channel(self) -> Any:
        return self

    @property
    def requests(self) -> Any:
        return self

    def write(self, frame: bytes, seconds: float) -> None:
        raise self._error

    def kill(self) -> None:
        self.killed = True


def new_member(drain_timeout: float = 1.0) -> MemberProcess:
    return MemberProcess(
        EngineConfig(
            model=ModelConfig("demo://"),
            device=DeviceConfig(device="cpu"),
            process=ProcessConfig(drain_timeout=drain_timeout),
            nodes=NodesConfig(nnodes=2, node_rank=1, master_addr="127.0.0.1"),
        ),
        "engine-0-node-1",
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SharedMemoryError("kvasir-frame needs 3 MiB"), Reason.OUT_OF_MEMORY),
        (SlowReaderError("worker 1 does not read", 1), Reason.CRASH_LOOPING),
    ],
)
def test_member_ends_if_a_frame_does_not_reach_its_workers(error: Exception, reason: Reason) -> None:
    process, leader, workers = new_member(), FakeLeader(), FakeWorkers(error)
    process._leader, process._workers = leader, workers  # type: ignore[assignment]
    process._on_frame(b"\0step")
    [failed] = leader.sent
    assert isinstance(failed, Failed)
    assert failed.reason is reason
    assert str(error) in failed.message
    assert workers.killed


def test_member_ends_if_the_engine_does_not_finish_in_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kvasir.executor.nodes.member_process._DRAIN_MARGIN_SECONDS", 0.2)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    process, leader = new_member(drain_timeout=0.1), FakeLeader()

    def serve() -> None:
        process._leader = leader  # type: ignore[assignment]
        process._status.enter(Phase.READY)
        process._on_signal(signal.SIGTERM, None)
        process._handle_events(leader, None)  # type: ignore[arg-type]

    monkeypatch.setattr(process, "_serve", serve)
    began = time.monotonic()
    assert process.run() is None  # it was asked to end: that is not a failure
    assert time.monotonic() - began >= 0.3
    assert leader.sent == [Leaving()]
    assert "the engine has not finished its requests in time" in caplog.text


def test_leader_learns_why_a_member_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    process, leader = new_member(), FakeLeader()

    def serve() -> None:
        process._leader = leader  # type: ignore[assignment]
        raise ConfigError("no network interface of this machine has the address 10.0.0.7")

    monkeypatch.setattr(process, "_serve", serve)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    failure = process.run()
    assert failure is not None
    assert leader.sent == [Failed(failure.reason, failure.message, raised=False)]
