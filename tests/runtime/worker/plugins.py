"""A package with entry points for worker classes and extensions, as a user would install one."""

import importlib
import sys
from pathlib import Path

import pytest

_CODE = '''
import os
import signal
import time
from pathlib import Path

import msgspec

from kvasir.config.options import ConfigError
from kvasir.worker.worker import Worker
from kvasir.worker.worker_calls import worker_call


class CountingWorker(Worker):
    steps = 0

    def execute(self, step, late=None):
        self.steps += 1
        return super().execute(step, late)

    @worker_call
    def steps_so_far(self) -> int:
        return self.steps


class HeldWorker(Worker):
    """Waits in the phase that the environment names, or raises there, and leaves a file when it is there. With
    lose-peer rank 1 raises TEST_LOSS as if rank 0 had ended, and rank 0 raises later.

    With TEST_RANK only this rank of a split model does so.
    """

    def load(self, progress):
        self.reach("load")
        super().load(progress)

    @worker_call
    def warm_up(self) -> None:
        self.reach("warm-up")
        super().warm_up()

    def execute(self, step, late=None):
        real = [row for row in step.scheduled if not row.request_id.startswith("dummy-")]
        if real:
            self.reach("prefill" if any(row.num_new_tokens > 1 for row in real) else "decode")
        return super().execute(step, late)

    def reach(self, phase):
        action, _, wanted = os.environ["TEST_ACTION"].partition(" ")
        parallel = self._placement.parallel
        rank = str(parallel.pipeline.rank * parallel.tensor.size + parallel.tensor.rank)
        if phase == wanted and action == "lose-peer":
            if rank == "1":
                raise RuntimeError(os.environ["TEST_LOSS"])
            time.sleep(0.3)
            raise RuntimeError("as asked")
        if phase != wanted or os.environ.get("TEST_RANK", rank) != rank:
            return
        if action == "raise":
            raise RuntimeError("as asked")
        if action == "reset":
            raise ConnectionResetError("as asked")
        if action == "fork-and-die":
            if os.fork() == 0:
                time.sleep(5)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "reject":
            raise ConfigError("--threads 7 does not fit")
        Path(os.environ["TEST_FOLDER"], str(os.getpid())).touch()
        while True:
            time.sleep(0.05)


class DriftingWorker(Worker):
    """Samples another token than its peers if its tensor rank is not 0."""

    def execute(self, step, late=None):
        output = super().execute(step, late)
        if self._placement.parallel.tensor.rank == 0:
            return output
        return msgspec.structs.replace(output, token_ids=[[token ^ 1 for token in row] for row in output.token_ids])


class Extension:
    def __init__(self, worker):
        self.worker = worker

    @worker_call
    def scaled(self, values: list[float], factor: float = 2.0) -> list[float]:
        return [factor * value for value in values]

    @worker_call
    def rank(self) -> tuple[str, int]:
        return "rank", self.worker._placement.parallel.tensor.rank

    @worker_call
    def unsendable(self) -> object:
        return self.worker

    @worker_call
    def worker_class(self) -> str:
        return type(self.worker).__name__

    @worker_call
    def broken(self) -> None:
        raise RuntimeError("as asked")

    def hidden(self) -> None:
        raise AssertionError("it has no mark")


class Clash:
    def __init__(self, worker):
        pass

    @worker_call
    def warm_up(self) -> None:
        pass
'''
_ENTRY_POINTS = """
[kvasir.workers]
counting = kvasir_test_plugin:CountingWorker
held = kvasir_test_plugin:HeldWorker
drifting = kvasir_test_plugin:DriftingWorker
[kvasir.worker_extensions]
extension = kvasir_test_plugin:Extension
clash = kvasir_test_plugin:Clash
"""


def install_plugins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the package importable in this process and in its children."""
    (folder / "kvasir_test_plugin.py").write_text(_CODE)
    metadata = folder / "kvasir_test_plugin-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kvasir-test-plugin\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(_ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    monkeypatch.delitem(sys.modules, "kvasir_test_plugin", raising=False)
    importlib.invalidate_caches()
