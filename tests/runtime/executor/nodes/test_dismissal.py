from pathlib import Path
from typing import cast

import pytest

from kvasir.executor.multiprocess import MultiprocessExecutor
from kvasir.executor.remote_workers import RemoteWorkers
from kvasir.hub.model_info import load_model_info
from kvasir_contract.failure import Failure
from kvasir_contract.reasons import Reason
from runtime.models.tiny import llama, save
from runtime.worker.driver import engine_settings


class DismissedNodes:
    """Another node that only receives its dismissal."""

    num_nodes = 1

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def dismiss(self, reason: str) -> None:
        self.reasons.append(reason)


def test_the_first_dismissal_of_the_other_nodes_has_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the engine's thread sees the failure, and shuts down, before the thread that reports it goes on."""
    nodes = DismissedNodes()
    model = load_model_info(save(llama(), tmp_path))
    executor = MultiprocessExecutor(engine_settings(), model, remote=cast(RemoteWorkers, nodes))
    monkeypatch.setattr(executor._local, "kill", executor.shutdown)
    failure = Failure(Reason.CRASH_LOOPING, "worker 0 was killed")
    executor.worker_failed(failure, failure.message, raised=False)
    assert nodes.reasons[0] == "worker 0 was killed"
