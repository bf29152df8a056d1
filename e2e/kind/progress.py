"""Progress output while a cluster is created: one line per step with its time, and the log's end if a step fails.

Each step gets a `Log` and runs its commands through it, so one file contains all output of the step.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

_TAIL = 25


class KindError(Exception):
    """An error for the user, with cause and next action. It is shown without a traceback."""


def tail(path: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-_TAIL:])


class Log:
    """The log file of the commands of one step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")  # the log of this run only

    def write(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text.rstrip("\n") + "\n")

    def tail(self) -> str:
        return tail(self.path)

    def run(
        self,
        *command: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: IO[bytes] | None = None,
    ) -> None:
        """Run a command, with its output in the log. Raises KindError if it fails. `env` extends ours."""
        self._call(command, None, cwd, env, stdin)

    def read(self, *command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        """Do the same as `run`, but return the command's standard output."""
        return self._call(command, subprocess.PIPE, cwd, env, None)

    def _call(
        self,
        command: tuple[str | Path, ...],
        stdout: int | None,
        cwd: Path | None,
        env: Mapping[str, str] | None,
        stdin: IO[bytes] | None,
    ) -> str:
        words = [str(word) for word in command]
        self.write("+ " + shlex.join(words))
        with self.path.open("ab") as file:
            # In its own process group, Ctrl-C reaches only us, and we kill the command with all its children.
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=file if stdout is None else stdout,
                stderr=file,
                cwd=cwd,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
            try:
                output, _ = process.communicate()
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
        if process.returncode:
            raise KindError(f"{words[0]} ended with code {process.returncode}: {shlex.join(words)[:300]}")
        return (output or b"").decode()


class Progress:
    """Numbered lines such as `[3/8] node image … 34 s` for `total` steps, whose logs are in the folder `logs`."""

    def __init__(self, total: int, logs: Path, out: IO[str] | None = None) -> None:
        self._total = total
        self._logs = logs
        self._out = out or sys.stdout
        self._done = 0

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Log]:
        """Time the block. If it fails, show the path and the end of its log."""
        self._done += 1
        self.say(f"[{self._done}/{self._total}] {name} … ", end="")
        log = Log(self._logs / f"{name.replace(' ', '-')}.log")
        start = time.monotonic()
        try:
            yield log
        except KindError as error:
            self.say("failed")
            raise KindError(f"{name}: {error}\nThe log, {log.path}, ends with:\n{log.tail()}") from error
        except BaseException:
            self.say("interrupted")
            raise
        self.say(f"{time.monotonic() - start:.0f} s")

    def say(self, text: str, end: str = "\n") -> None:
        print(text, end=end, file=self._out, flush=True)
