import threading
from pathlib import Path

import pytest

from kvasir.executor.processes.local_workers import LocalWorkers
from kvasir.executor.processes.worker_messages import WorkerSetup
from kvasir.hub.model_info import load_model_info
from runtime.models.tiny import llama, save
from runtime.worker.driver import engine_settings


class NeverStarted:
    """A RunningWorker without a process."""

    def __init__(self, setup: WorkerSetup) -> None:
        self.rank = setup.rank
        self.pid = 0
        self.ended = threading.Event()
        self.ended.set()
        self.is_stopped = False

    def watch(self, *call_backs: object) -> None: ...

    def place(self) -> str:
        return ""

    def dismiss(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("device", "ranks", "devices"),
    [
        ("cuda", range(3), ["cuda:0", "cuda:1", "cuda:2"]),
        ("cuda", range(2, 4), ["cuda:0", "cuda:1"]),  # of the second machine
        ("cpu", range(2), ["cpu", "cpu"]),
    ],
)
def test_each_worker_has_a_gpu_of_its_own(device: str, ranks: range, devices: list[str], tmp_path: Path) -> None:
    setups: list[WorkerSetup] = []

    def start(setup: WorkerSetup, threads: int) -> NeverStarted:
        setups.append(setup)
        return NeverStarted(setup)

    model = load_model_info(save(llama(), tmp_path))
    workers = LocalWorkers(
        ranks, engine_settings(device=device), model, lambda *news: None, lambda *failure: None, start
    )
    workers.start(None)
    workers.shutdown()
    assert [setup.settings.device for setup in setups] == devices
