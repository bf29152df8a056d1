"""Spawn a supervised process, wait for it, and end it with grace.

A child has its own session: Ctrl-C reaches only the supervisor, and a signal to the child's process group reaches
its children. It ends with the supervisor, even at kill -9.
"""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from kvasir.local.supervision import launch
from kvasir.local.supervision.process_spec import ProcessSpec
from kvasir_contract.process_basics import directory_exists


class ChildProcess:
    def __init__(self, process: asyncio.subprocess.Process, log: Path, log_start: int) -> None:
        self._process = process
        self._log = log
        self._log_start = log_start
        self._swept = False

    @classmethod
    async def spawn(cls, spec: ProcessSpec, log: Path) -> "ChildProcess":
        log.parent.mkdir(parents=True, exist_ok=True)  # it may have been deleted meanwhile
        with log.open("ab") as output:
            log_start = output.tell()  # the process shares the position and moves it when it writes
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", launch.__file__, str(os.getpid())),
                *spec.argv,
                env=dict(spec.env),
                cwd=None if directory_exists() else "/",  # MKL ends a process in a deleted directory
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=spec.pass_fds,
            )
            return cls(process, log, log_start)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Return the exit code, or minus the signal number."""
        code = await self._process.wait()
        if not self._swept:
            self._swept = True
            self._signal_group(signal.SIGKILL)  # children that it left behind
        return code

    async def end(self, grace: float, kill: asyncio.Event) -> None:
        """Send SIGTERM, and SIGKILL after the grace period or when `kill` is set."""
        if self._process.returncode is None:
            # `terminate` would take the exit code away from asyncio
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)
        exited = asyncio.create_task(self.wait())
        killed = asyncio.create_task(kill.wait())
        try:
            await asyncio.wait({exited, killed}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
            self.kill()
            await exited
        finally:
            killed.cancel()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._signal_group(signal.SIGKILL)

    def last_lines(self, count: int = 12, size: int = 16384) -> list[str]:
        return self.lines(size)[-count:]

    def lines(self, size: int = 2**20) -> list[str]:
        """Return the lines in the last `size` bytes of output; none if the log was deleted."""
        try:
            log = self._log.open("rb")
        except FileNotFoundError:
            return []
        with log:
            end = log.seek(0, os.SEEK_END)
            start = min(max(self._log_start, end - size), end)
            log.seek(start)
            text = log.read(end - start).decode(errors="replace")
        return [line.rstrip() for line in text.split("\n") if line.strip()]

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # gone already
            os.killpg(self._process.pid, number)
