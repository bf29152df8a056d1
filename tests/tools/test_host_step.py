"""bench/host_step.py: a smoke test, because it replaces parts of the engine by name."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="builds of torch without CUDA have no triton"
)


def run_bench(*options: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(["runtime", "."])}
    command = [sys.executable, "-m", "bench.host_step", *options]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)


def test_steps_of_each_number_of_requests_are_timed() -> None:
    done = run_bench("--requests", "1,3", "--steps", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [int(number) for number, _, _ in table] == [1, 3]
    assert all(int(median) > 0 for _, median, _ in table)


def test_more_steps_than_a_request_has_tokens_are_refused() -> None:
    done = run_bench("--steps", "5000")
    assert done.returncode == 2
    assert "--steps 5000 is more than the 1900 tokens" in done.stderr
