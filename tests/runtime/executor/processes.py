"""Reads /proc for tests of processes."""

import os
import time
from pathlib import Path

from kvasir.wire import connection_keeper


def is_alive(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def seconds_until_gone(pids: list[int], limit: float) -> float:
    """Wait until none of these processes is alive. Raises TimeoutError after `limit` seconds."""
    began = time.monotonic()
    for pid in pids:
        while is_alive(pid):
            if time.monotonic() - began > limit:
                raise TimeoutError(f"process {pid} is alive after {limit} s")
            time.sleep(0.005)
    return time.monotonic() - began


def children_of(pid: int) -> list[int]:
    """Return the processes that the main thread of a process has started, without the keeper of its connections."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in children if connection_keeper.__file__.encode() not in _command(child)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def named(name: str) -> list[int]:
    """Return the processes of this machine whose command begins with this name."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and _command(int(entry.name)).startswith(name.encode()):
            found.append(int(entry.name))
    return found


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def imports_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
