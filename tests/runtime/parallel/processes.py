"""Ranks as processes over gloo, for tests: each joins the others, works and returns a value.

results = run_processes(2, work, tmp_path)
"""

import concurrent.futures
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from kvasir.parallel.parallel_state import ParallelState
from kvasir.parallel.start import init, leave

T = TypeVar("T")
WAIT = 60.0


def run_processes(
    size: int, work: Callable[..., T], folder: Path, *arguments: Any, timeout: float = WAIT, **groups: Any
) -> list[T]:
    """Return what `work(state, *arguments)` returns on each rank; raise what a rank raises.

    `work` is a function of a module. `groups` are options of `init`.
    """
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(size, mp_context=spawn) as pool:
        futures = [
            pool.submit(_run, rank, size, folder / "rendezvous", timeout, groups, work, arguments)
            for rank in range(size)
        ]
        return [future.result(timeout=WAIT + timeout) for future in futures]


def _run(
    rank: int,
    size: int,
    path: Path,
    timeout: float,
    groups: dict[str, Any],
    work: Callable[..., T],
    arguments: tuple[Any, ...],
) -> T:
    torch.set_num_threads(1)
    state: ParallelState = init(rank, size, path, timeout, **groups)
    try:
        with torch.inference_mode():
            return work(state, *arguments)
    finally:
        leave()


def gloo_wake_ups() -> list[int]:
    """How often each of gloo's threads has slept and woken up."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())
        if status["Name"].startswith("gloo"):
            found.append(int(status["voluntary_ctxt_switches"]))
    return found


def idle_wake_ups() -> list[int]:
    """How often each of gloo's threads wakes up in a second in which nothing is exchanged."""
    before = gloo_wake_ups()
    time.sleep(1)
    return [after - earlier for earlier, after in zip(before, gloo_wake_ups(), strict=True)]
