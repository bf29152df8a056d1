"""`kvasir bench` of an engine with worker processes leaves none of them behind."""

import os

import pytest

from kvasir.cli import main
from runtime.executor.processes import children_of

ENGINE = ("demo://", "--kv-cache-memory-bytes", "8Mi", "--threads", "1", "--input-len", "9", "--output-len", "4")


@pytest.mark.parametrize(("options", "exit_code"), [(["--batch-size", "1"], 0), (["--batch-size", "5000"], 2)])
def test_latency_ends_the_workers_before_it_returns(options: list[str], exit_code: int) -> None:
    before = children_of(os.getpid())
    argv = ["bench", "latency", *ENGINE, "--iterations", "1", "--tensor-parallel-size", "2", *options]
    assert main.main(argv) == exit_code
    assert set(children_of(os.getpid())) <= set(before)
