"""Time of the GPU by the names of kernels, from a profile of torch.

The trace that the profiler exports is read, because its form is the same in all versions of torch.
"""

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

_ON_DEVICE: Final = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
_LONGEST_NAME: Final = 60
_PARAMETERS: Final = re.compile(r"<.*|\(.*", re.DOTALL)
_GENERIC: Final = "at::native::"
_GENERIC_ENDS: Final = ("UnaryFunctor", "BinaryFunctor", "_impl", "_nocast", "ReduceOp", "detail", "Iterator")
_INNER: Final = re.compile(r"at::native::(\w+)")


@dataclass(frozen=True)
class KernelTime:
    seconds: float
    launches: int


@dataclass(frozen=True)
class Breakdown:
    # The longest first.
    kernels: Mapping[str, KernelTime]
    # Seconds in which the device computed or copied something.
    busy: float
    # Seconds from its first operation to the end of its last.
    span: float


def profiled(run: Callable[[], object], *, on_gpu: bool) -> Breakdown:
    """Return the operations of the device while `run` runs."""
    activities = [ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    with profile(activities=activities) as recorded:
        run()
        if on_gpu:
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        recorded.export_chrome_trace(str(path))
        return breakdown(json.loads(path.read_text())["traceEvents"])


def kernel_seconds(call: Callable[[], object], *, on_gpu: bool, repeats: int = 20) -> dict[str, float]:
    """Return the mean time of a launch, by name."""
    call()

    def calls() -> None:
        for _ in range(repeats):
            call()

    found = profiled(calls, on_gpu=on_gpu)
    return {name: each.seconds / each.launches for name, each in found.kernels.items()}


def breakdown(events: Iterable[Mapping[str, Any]]) -> Breakdown:
    # `events`: of a trace in Chrome's format; times are in microseconds.
    seconds: defaultdict[str, float] = defaultdict(float)
    launches: defaultdict[str, int] = defaultdict(int)
    spans = []
    for event in events:
        if event.get("ph") != "X" or event.get("cat") not in _ON_DEVICE:
            continue
        name, duration = short_name(str(event["name"])), float(event["dur"]) * 1e-6
        seconds[name] += duration
        launches[name] += 1
        begin = float(event["ts"]) * 1e-6
        spans.append((begin, begin + duration))
    spans.sort()
    busy, end = 0.0, -1.0
    for begin, ends in spans:
        busy += max(0.0, ends - max(begin, end))
        end = max(end, ends)
    span = end - spans[0][0] if spans else 0.0
    names = sorted(seconds, key=lambda name: -seconds[name])
    return Breakdown({name: KernelTime(seconds[name], launches[name]) for name in names}, busy, span)


def short_name(name: str) -> str:
    """Return a kernel's name without parameters; of torch's generic kernels with the operation in them."""
    if name.startswith("Mem"):  # copies, with their direction
        return name[:_LONGEST_NAME]
    whole = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    base = _PARAMETERS.sub("", whole) or whole
    if base.startswith(_GENERIC):
        inner = [each for each in _INNER.findall(whole[len(base) :]) if not each.endswith(_GENERIC_ENDS)]
        base = " ".join([base.removeprefix("at::native::"), *inner[:1]])
    return base[:_LONGEST_NAME]
