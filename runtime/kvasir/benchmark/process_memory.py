"""Memory of a process and its descendants, from /proc."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes of a process now, and at most."""

    command: tuple[str, ...]
    resident: int
    peak: int


def memory_of_tree(pid: int) -> list[ProcessMemory]:
    """Return the memory of each process, the given one first. A process that ends meanwhile is left out."""
    found = []
    for each in _tree(pid):
        try:
            status = Path(f"/proc/{each}/status").read_text()
            command = Path(f"/proc/{each}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        sizes = {name: value for name, _, value in (line.partition(":") for line in status.splitlines())}
        if "VmHWM" in sizes:  # not of a process that has ended and not been waited for
            found.append(ProcessMemory(tuple(command), _kib(sizes["VmRSS"]), _kib(sizes["VmHWM"])))
    return found


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for children in sorted(Path(f"/proc/{pid}/task").glob("*/children")):
        try:
            pids = [int(child) for child in children.read_text().split()]
        except OSError:  # the thread has ended
            continue
        for child in pids:
            yield from _tree(child)


def _kib(text: str) -> int:
    return int(text.split()[0]) * 1024
