"""A real service for tests: `kvasir up` or `kvasir serve` as a child process, with its frontend and engines."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
START_TIMEOUT = 120
"""Seconds; a hang fails the test, which prints the whole output."""


@dataclass(frozen=True)
class Part:
    """One process of the service."""

    pid: int
    name: str
    ops: str
    """Base URL of its probes and metrics."""


class Service:
    """A running service; made by `running`."""

    def __init__(self, process: subprocess.Popen[str], printed: list[str], url: str) -> None:
        self.process = process
        self.printed = printed
        self.url = url

    def parts(self) -> list[Part]:
        """The processes that the supervisor runs now."""
        found = []
        for pid in _children(self.process.pid):
            try:
                variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
                continue
            env = dict(entry.split("=", 1) for entry in variables if "=" in entry)
            ops = f"http://127.0.0.1:{env.get('KVASIR_OPS_PORT')}"
            if "KVASIR_DATA_PARALLEL_RANK" in env:
                found.append(Part(pid, f"engine-{env['KVASIR_DATA_PARALLEL_RANK']}", ops))
            elif "KVASIR_FD" in env:
                found.append(Part(pid, "frontend", ops))
        return sorted(found, key=lambda part: part.name)

    def engines(self) -> list[Part]:
        return [part for part in self.parts() if part.name.startswith("engine")]

    def metric(self, base: str, name: str) -> float:
        text = httpx.get(f"{base}/metrics").text
        return sum(
            float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        )

    def read_until(self, pattern: str) -> re.Match[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(line)
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"it ended with {self.process.wait()} before it printed {pattern!r}:\n{self.text}")

    @property
    def text(self) -> str:
        return "".join(self.printed)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Ctrl-C; returns the exit code."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=90)
        self.printed.append(rest)
        return self.process.returncode


@contextmanager
def running(*command: str, env: dict[str, str] | None = None, cwd: Path = ROOT) -> Iterator[Service]:
    """`kvasir COMMAND`, once it serves; ended by Ctrl-C, and everything it started has to be gone then."""
    process = spawn(command, env, cwd)
    service = Service(process, [], "")
    watchdog = _Watchdog(process)
    try:
        with watchdog:
            service.url = service.read_until(r"is served at (http://\S+)/v1")[1]
            service.read_until("Ctrl-C")
        pids = [part.pid for part in service.parts()]
        yield service
    except BaseException:
        process.kill()
        raise
    finally:
        if process.poll() is None:
            service.stop()
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not left, f"processes {left} are left after Ctrl-C"


@contextmanager
def process(*command: str, until: str) -> Iterator[re.Match[str]]:
    """`kvasir COMMAND`, once its log matches; ended by a signal, and it must end in order."""
    started = spawn(command)
    with _Watchdog(started):
        try:
            yield Service(started, [], "").read_until(until)
        finally:
            started.terminate()
            rest, _ = started.communicate()
    assert started.returncode == 0, rest


def spawn(command: Sequence[str], env: dict[str, str] | None = None, cwd: Path = ROOT) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "kvasir.cli.main", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=cwd,
        env=os.environ | (env or {}),
        start_new_session=True,
    )


class _Watchdog:
    """Kills a process that is not done in time, so that a read of its output ends."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        import threading

        self._timer = threading.Timer(START_TIMEOUT, process.kill)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]
