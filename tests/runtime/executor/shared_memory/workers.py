"""An engine's channel with scripted worker processes."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from kvasir.executor.shared_memory.channel import ChannelLayout, EngineChannel
from kvasir.executor.shared_memory.worker_progress import WorkerProgress

T = TypeVar("T")
SCRIPT = Path(__file__).with_name("scripted_worker.py")
SMALL = ChannelLayout(request_bytes=4096, reply_bytes=1024)
TIMEOUT_SECONDS = 60.0
"""For everything that happens in the end."""


class Workers:
    def __init__(self, behaviours: Sequence[str], layout: ChannelLayout = SMALL) -> None:
        self.channel = EngineChannel(len(behaviours), layout)
        self.processes = [self._start(rank, behaviour) for rank, behaviour in enumerate(behaviours)]
        self.channel.close_handles()

    def _start(self, rank: int, behaviour: str) -> subprocess.Popen[bytes]:
        handle = self.channel.handle(rank)
        command = [sys.executable, str(SCRIPT), handle.to_text(), *behaviour.split()]
        return subprocess.Popen(command, pass_fds=handle.descriptors)

    def write(self, frame: bytes) -> None:
        self.channel.requests.write(frame, TIMEOUT_SECONDS)

    def read(self) -> list[bytes]:
        return self.channel.replies.read(TIMEOUT_SECONDS)

    def step(self, frame: bytes) -> list[bytes]:
        self.write(frame)
        return self.read()

    def await_phase(self, rank: int, phase: int, step: int = 0) -> WorkerProgress:
        """Wait until the worker is in this phase of this step or of a later one."""

        def reached() -> WorkerProgress | None:
            progress = self.channel.progress[rank].read()
            return progress if progress is not None and progress.step >= step and progress.phase == phase else None

        return wait_for(reached)

    def kill(self, rank: int) -> None:
        self.processes[rank].kill()

    def close(self) -> None:
        self.channel.close()
        for process in self.processes:
            process.kill()
            process.wait()


@contextmanager
def running(*behaviours: str, layout: ChannelLayout = SMALL) -> Iterator[Workers]:
    """Start one worker per behaviour, rank 0 first."""
    workers = Workers(behaviours, layout)
    try:
        yield workers
    finally:
        workers.close()


def wait_for(condition: Callable[[], T | None]) -> T:
    """Return the condition's value as soon as it is not None."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (value := condition()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return value


def cpu_ticks(pid: int) -> int:
    """Return the CPU time of a process, in user and system mode, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
