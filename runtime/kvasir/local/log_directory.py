"""Directories of log files, one for each name and port of a service.

A running service locks its directory; the kernel releases the lock however the process ends.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kvasir.config.options import ConfigError

MAX_EARLIER_RUNS: Final = 20
"""A starting service removes older directories."""


class LogDirectory:
    """The directory of one service until `close`. Raises ConfigError if it cannot be created."""

    def __init__(self, name: str) -> None:
        self.path = log_root() / name
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock: int | None = os.open(self.path, os.O_RDONLY)
            os.utime(self.path)  # the order of `directories`; a second run creates no file here
        except OSError as error:
            raise ConfigError(f"cannot keep logs in {self.path}: {error.strerror}; set XDG_STATE_HOME") from error
        with contextlib.suppress(OSError):  # not every network file system has locks
            fcntl.flock(self._lock, fcntl.LOCK_SH)  # others hold a lock for a moment only
        _remove_old()

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def log_root() -> Path:
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return state / "kvasir"


def directories() -> list[Path]:
    """Return the directories of all services, the one that started last first."""
    started = {}
    with contextlib.suppress(FileNotFoundError):
        for path in log_root().iterdir():
            if path.is_dir():
                started[path] = path.stat().st_mtime_ns
    return sorted(started, key=started.__getitem__, reverse=True)


def is_in_use(directory: Path) -> bool:
    with _locked(directory) as is_free:
        return not is_free


def _remove_old() -> None:
    for path in directories()[MAX_EARLIER_RUNS + 1 :]:
        # Some may belong to another user.
        with contextlib.suppress(PermissionError), _locked(path) as is_free:
            if is_free:
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    """Lock a directory without a service. Yields False if it is in use."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except FileNotFoundError:
        yield True
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = True
    except OSError:  # in use, or a file system without locks
        is_free = False
    try:
        yield is_free
    finally:
        os.close(descriptor)
