"""Huge pages for memory that steps on CPU read. Linux only."""

import ctypes
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path

_HUGE = 2 * 2**20
# MADV_COLLAPSE of Linux 6.1, which Python's mmap lacks.
_COLLAPSE = 25
# MADV_POPULATE_WRITE of Linux 5.14.
_POPULATE_WRITE = 23
_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def zeroed_memory(size: int) -> mmap.mmap:
    # Pages are allocated on first use.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux" and _allowed():
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def take(address: int, size: int) -> None:
    """Prefault memory, if the kernel can."""
    if sys.platform == "linux":
        _madvise(address, size, _POPULATE_WRITE)


def collapse() -> None:
    """Put large memory in use (the weights) into huge pages, if the kernel can."""
    if sys.platform != "linux" or not _allowed():
        return
    for start, end in _large_regions(Path("/proc/self/smaps").read_text()):
        _madvise(start, end - start, _COLLAPSE)


def _madvise(address: int, size: int, advice: int) -> None:
    # Python's madvise takes only Python's mappings, and holds the GIL.
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise(address, size, advice)


def _allowed() -> bool:
    try:
        return "[never]" not in _ENABLED.read_text()
    except OSError:
        return False


def _large_regions(smaps: str) -> Iterator[tuple[int, int]]:
    # Anonymous memory that is mostly in use, without stacks and reserves.
    start = end = 0
    anonymous = False
    for line in smaps.splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            start, end = (int(address, 16) for address in name.split("-"))
            anonymous = rest[0] == "rw-p" and (len(rest) < 5 or rest[4] == "[heap]")
        elif name == "Rss:" and anonymous and int(rest[0]) * 1024 >= 0.9 * (end - start):
            first, last = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
            if first < last:
                yield first, last
