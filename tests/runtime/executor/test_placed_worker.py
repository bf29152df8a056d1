import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvasir.executor.processes.worker_messages import WorkerError, WorkerSetup
from kvasir.executor.shared_memory.channel import EngineChannel
from kvasir.hub.model_info import load_model_info
from runtime.executor.ray_stand_in import ray_stand_in
from runtime.models.tiny import llama, save
from runtime.worker.driver import engine_settings

WAIT = 60.0
USERS = tuple(f"kvasir.executor.ray_workers.{name}" for name in ("cluster", "placed_worker"))


class RayIsGoneError(Exception):
    pass


def fail(*_: Any, **__: Any) -> None:
    raise RayIsGoneError("the connection to Ray broke")


@pytest.fixture
def lost_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every call of Ray raises."""
    unused = type("Unused", (Exception,), {})
    exceptions = SimpleNamespace(GetTimeoutError=unused, OutOfMemoryError=unused)
    ray = {"exceptions": exceptions, "wait": fail, "get": fail, "kill": fail}
    with ray_stand_in(monkeypatch, ray, *USERS):
        yield


def test_a_lost_ray_ends_a_worker_that_has_not_connected(lost_ray: None, tmp_path: Path) -> None:
    from kvasir.executor.ray_workers.placed_worker import PlacedWorker

    channel = EngineChannel(1)
    setup = WorkerSetup(
        rank=1,
        handle=channel.handle(0),
        settings=engine_settings(),
        model=load_model_info(save(llama(), tmp_path)),
        engine_pid=os.getpid(),
        stack_descriptor=-1,
        rendezvous=None,
        log_name="engine-0-worker-1",
        log_level="info",
        log_format="text",
    )
    worker = PlacedWorker(setup, lambda address: (None, None), lambda: None)
    reported = threading.Event()
    reports: list[tuple[int, str]] = []

    def ended(rank: int, how: str, error: WorkerError | None) -> None:
        reports.append((rank, how))
        reported.set()

    worker.watch(lambda rank, message: None, ended, lambda rank: None, WAIT)
    assert reported.wait(WAIT)
    assert reports == [(1, "ended (Ray: the connection to Ray broke)")]
    worker.close()
    channel.close()
