"""Times of work on a GPU: medians of CUDA events, after a warm-up.

On a CPU everything runs once, so that a smoke test runs the same code; the times have no meaning then.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

import torch

Call = Callable[[], object]

_WARM: Final = 3
# Several times the L2 cache of a GPU: inputs that are used in turn and have so many bytes come from memory.
CACHE_BYTES: Final = 256 * 2**20
_MAX_SETS: Final = 64


def median_seconds(call: Call, *, on_gpu: bool, repeats: int = 20) -> float:
    """Return the time of a call whose launches take less time than its work on the device."""
    if not on_gpu:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began
    for _ in range(_WARM):
        call()
    pairs = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    milliseconds: list[float] = [begin.elapsed_time(end) for begin, end in pairs]
    return statistics.median(milliseconds) / 1000


def graph_seconds(calls: Sequence[Call], *, on_gpu: bool, repeats: int = 10, least: int = 16) -> float:
    """Return the mean time of a call, from replays of a CUDA graph of all calls without waits for launches.

    Calls need their own inputs, so that numbers come from memory and not from the cache. They are repeated until
    the graph has `least` calls.
    """
    if not on_gpu:
        return median_seconds(calls[0], on_gpu=False)
    for call in calls:
        call()
    torch.cuda.synchronize()
    rounds = -(-least // len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    seconds = median_seconds(graph.replay, on_gpu=True, repeats=repeats)
    del graph
    return seconds / (rounds * len(calls))


def sets_for(num_bytes: int) -> int:
    """Return the number of input sets of so many bytes that the cache does not hold."""
    return max(1, min(_MAX_SETS, CACHE_BYTES // max(1, num_bytes)))
