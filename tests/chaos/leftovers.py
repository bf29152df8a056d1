"""What an engine must not leave behind: processes, shared memory, files."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

MARK: Final = "CHAOS_ROUND"
"""A variable of the environment. The kernel shows it for every process that an engine has started, orphans too."""
_SHARED_MEMORY: Final = Path("/dev/shm")
_PAUSE_SECONDS: Final = 0.005
_STAY_SECONDS: Final = 2.0


def marked_processes(mark: str) -> list[int]:
    """Return the processes, except zombies, whose environment has this mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in _processes():
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def wait_until_gone(mark: str, deadline: float) -> list[int]:
    """Wait until no process has this mark, at most until `deadline` (monotonic). Return those that are left."""
    while (left := marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    return left


def shared_memory() -> set[str]:
    return set(os.listdir(_SHARED_MEMORY))


def left_shared_memory(before: set[str]) -> list[str]:
    """Return the files that are new, that stay, and that no process uses: other programs make some."""
    deadline = time.monotonic() + _STAY_SECONDS
    while left := [name for name in shared_memory() - before if not _is_used(str(_SHARED_MEMORY / name))]:
        if time.monotonic() > deadline:
            break
        time.sleep(_PAUSE_SECONDS)
    return left


def _is_used(path: str) -> bool:
    for folder in _processes():
        with suppress(OSError):
            if path in (folder / "maps").read_text():
                return True
    return False


def _processes() -> Iterator[Path]:
    return (folder for folder in Path("/proc").iterdir() if folder.name.isdecimal())
