"""A process that runs sections and sends each figure at once, so that none is lost if it is killed."""

import gc
import importlib
import logging
import os
import platform
import subprocess
import time
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol

from bench.gpu.sections import Section

Figures = dict[str, Any]


@dataclass(frozen=True)
class Options:
    device: str = "cuda"
    tiny: bool = False


@dataclass(frozen=True)
class Job:
    section: Section
    # Of the section with this name; empty if there are none.
    ceilings: Figures


@dataclass(frozen=True)
class Facts:
    values: Figures


@dataclass(frozen=True)
class Figure:
    key: str
    value: Any


@dataclass(frozen=True)
class Check:
    kernel: str
    case: str
    # Relative to the norm of the reference. Infinite for NaN.
    error: float
    # "" if it has passed.
    problem: str = ""


@dataclass(frozen=True)
class Line:
    text: str


@dataclass(frozen=True)
class Warned:
    text: str


@dataclass(frozen=True)
class Ended:
    # A traceback, or "".
    error: str
    # The device cannot be used any more in this process.
    is_broken: bool


Message = Facts | Figure | Check | Line | Warned | Ended


class Context:
    """The tools of a section: the device, sizes, and ways to report."""

    def __init__(self, connection: "Connection[Message, Job]", options: Options, ceilings: Figures) -> None:
        self.device = options.device
        self.tiny = options.tiny
        self.ceilings = ceilings
        self._connection = connection

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    def record(self, key: str, value: Any) -> None:
        # `value` may be anything that JSON has.
        self._connection.send(Figure(key, value))

    def check(self, kernel: str, case: str, error: float, problem: str = "") -> None:
        self._connection.send(Check(kernel, case, error, problem))

    def line(self, text: str) -> None:
        self._connection.send(Line(text))

    def share(self, achieved: float, ceiling: str) -> float | None:
        """Return a rate as a share of a measured one; None if that was not measured."""
        measured = self.ceilings.get(ceiling)
        return achieved / measured if measured else None


class _Runs(Protocol):
    def run(self, context: Context, argument: str) -> None: ...


def serve(connection: "Connection[Message, Job]", options: Options) -> None:
    """Run the jobs of the connection until it is closed."""
    handler = _SendsWarnings(connection)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    connection.send(Facts(_facts(options)))
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        error = ""
        context = Context(connection, options, job.ceilings)
        try:
            section: _Runs = importlib.import_module(f"bench.gpu.{job.section.module}")
            section.run(context, job.section.argument)
        except Exception:
            error = traceback.format_exc()
        connection.send(Ended(error, _is_broken(options)))


def _is_broken(options: Options) -> bool:
    """Free the memory of a section. Return whether an error of the device stays: each later call fails too."""
    import torch

    gc.collect()
    if options.device == "cpu":
        return False
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.ones(1, device=options.device).item()
    except Exception:
        return True
    return False


@dataclass
class _SendsWarnings(logging.Handler):
    """Sends each warning once per process."""

    connection: "Connection[Message, Job]"
    seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__(logging.WARNING)

    def __hash__(self) -> int:
        return id(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.name}: {record.getMessage()}"
        if text not in self.seen:
            self.seen.add(text)
            self.connection.send(Warned(text))


def _facts(options: Options) -> Figures:
    began = time.perf_counter()
    import torch
    import triton

    facts: Figures = {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "kernel": platform.release(),
    }
    if options.device != "cpu":
        properties = torch.cuda.get_device_properties(torch.device(options.device))
        facts["gpu"] = properties.name
        facts["gpu_memory_gib"] = round(properties.total_memory / 2**30, 1)
        facts["multiprocessors"] = properties.multi_processor_count
        facts["cuda"] = torch.version.cuda
        facts["driver"] = _driver()
    facts["import_seconds"] = round(time.perf_counter() - began, 2)
    return facts


_QUERY: Final = ("nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,power.limit", "--format=csv,noheader")


def _driver() -> str:
    try:
        return subprocess.run(_QUERY, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"not known: {error}"
