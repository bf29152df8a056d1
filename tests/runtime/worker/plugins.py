"""A package with entry points for worker classes and extensions, as a user would install one."""

import importlib
import sys
from pathlib import Path

import pytest

_CODE = """
from kvasir.worker.worker import Worker
from kvasir.worker.worker_calls import worker_call


class CountingWorker(Worker):
    steps = 0

    def execute(self, step):
        self.steps += 1
        return super().execute(step)

    @worker_call
    def steps_so_far(self) -> int:
        return self.steps


class Extension:
    def __init__(self, worker):
        self.worker = worker

    @worker_call
    def scaled(self, values: list[float], factor: float = 2.0) -> list[float]:
        return [factor * value for value in values]

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
"""
_ENTRY_POINTS = """
[kvasir.workers]
counting = kvasir_test_plugin:CountingWorker
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
