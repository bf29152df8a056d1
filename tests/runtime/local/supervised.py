"""A supervisor of real child processes, with a screen that records its lines."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvasir.local.supervision.keeper import Timing
from kvasir.local.supervision.process_spec import Probe, ProcessSpec, ProcessState
from kvasir.local.supervision.supervisor import Supervisor

FAKE = Path(__file__).with_name("fake_process.py")
FAST = Timing(first_pause=0.05, longest_pause=0.15, healthy_after=60, look=0.02)
PATIENCE = 60.0
"""Seconds until a test that waits for an event is taken for failed."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def spec(name: str, *behaviour: str, grace: float = 10) -> ProcessSpec:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    return ProcessSpec(
        service="demo",
        name=name,
        argv=(sys.executable, "-I", str(FAKE), str(port), *behaviour),
        env=dict(os.environ),
        readiness=Probe(f"{url}/health/ready", period=0.05, timeout=5, failures=2),
        liveness=None,
        startup=None,
        status_url=f"{url}/status",
        grace=grace,
    )


@dataclass
class Recording:
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    served: int = 0
    states: dict[str, ProcessState] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def changed(self, state: ProcessState) -> None:
        self.states[state.spec.name] = state
        self.lines.append(" ".join(filter(None, (state.spec.name, state.phase, state.message))))
        self._changed.set()

    def serving(self) -> None:
        self.served += 1
        self._changed.set()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self) -> None: ...

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def count(self, line: str) -> int:
        return sum(line in shown for shown in self.lines)


class Running:
    """A supervisor at work; every process that it starts inherits the write end of a pipe."""

    def __init__(self, supervisor: Supervisor, screen: Recording, pipe: tuple[int, int]) -> None:
        self.supervisor = supervisor
        self.screen = screen
        self.task = asyncio.create_task(supervisor.run())
        self._read_end, self._write_end = pipe

    async def ended(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.task

    async def all_gone(self) -> bool:
        """The pipe is at its end once the last process that held it is gone."""
        os.close(self._write_end)
        async with asyncio.timeout(PATIENCE):
            return await asyncio.to_thread(os.read, self._read_end, 1) == b""

    def pid(self, name: str) -> int:
        pid = self.screen.states[name].pid
        assert pid is not None
        return pid


@contextlib.asynccontextmanager
async def running(tmp_path: Path, *specs: ProcessSpec, timing: Timing = FAST) -> AsyncIterator[Running]:
    pipe = os.pipe()
    screen = Recording()
    specs = tuple(replace(each, pass_fds=(pipe[1],)) for each in specs)
    run = Running(Supervisor(specs, {"demo": tmp_path}, screen, timing), screen, pipe)
    try:
        yield run
    finally:
        while not run.task.done():
            run.supervisor.end()
            await asyncio.wait({run.task}, timeout=0.05)
        for end in pipe:
            with contextlib.suppress(OSError):
                os.close(end)
