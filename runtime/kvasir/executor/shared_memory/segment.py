"""Anonymous shared memory (memfd), inherited as a file descriptor.

It counts against the container's memory, not /dev/shm. All pages are taken at once, so no write fails; the size is
sealed, so no peer causes SIGBUS.
"""

import fcntl
import mmap
import os
from typing import Final

from kvasir.config.hardware.machine import available_memory

# Since Linux 6.3, demanded if sysctl vm.memfd_noexec is 2; not in Python 3.11's os.
_MFD_NOEXEC_SEAL: Final = 0x8
_SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class SharedMemoryError(Exception):
    pass


def allocate(name: str, size: int) -> int:
    """Return the descriptor of `size` bytes; `name` shows in /proc/PID/maps. Raises SharedMemoryError."""
    free = available_memory()
    if size > free:
        raise SharedMemoryError(
            f"{name} needs {_mebibytes(size)} of shared memory, and this container has {_mebibytes(free)} of "
            "memory left: raise its memory limit"
        )
    try:
        return _create(name, size)
    except OSError as error:
        raise SharedMemoryError(f"{name} cannot get {_mebibytes(size)} of shared memory: {error}") from error


def map_writable(descriptor: int, offset: int, size: int) -> memoryview:
    """Map a part while the view exists. `offset` is a multiple of GRANULE."""
    return memoryview(mmap.mmap(descriptor, size, offset=offset))


def map_read_only(descriptor: int, offset: int, size: int) -> memoryview:
    """Map a part like `map_writable`; a write raises TypeError."""
    return memoryview(mmap.mmap(descriptor, size, offset=offset, access=mmap.ACCESS_READ))


GRANULE: Final = mmap.ALLOCATIONGRANULARITY  # bytes; parts begin at multiples of it


def round_up(size: int) -> int:
    return -(-size // GRANULE) * GRANULE


def _create(name: str, size: int) -> int:
    descriptor = _memfd(name)
    try:
        os.posix_fallocate(descriptor, 0, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SIZE_SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _memfd(name: str) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError:
        return os.memfd_create(name, flags)


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
