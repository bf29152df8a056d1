"""Has glibc return the memory of a large body to the system as soon as the body is freed.

glibc gives each allocation above a threshold a mapping of its own, which goes back to the system when it is freed.
But each such free raises the threshold to that size, up to 32 MiB, so after the first large bodies the next ones
come from the heap, where small objects behind them keep their memory from being returned or used again for a large
one. A threshold that is set once does not change.
"""

import ctypes
from typing import Final

LARGE: Final = 2 * 2**20
"""Bytes of an allocation with a mapping of its own. The kernel clears all pages of a new mapping, which for a body
of 400 KB would take half as long as the rest of its request. Smaller bodies fit into each other's gaps."""
SPARE: Final = 4 * 2**20
"""Free bytes at the end of the heap that stay there: the next request would have to take returned ones again."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def return_large_allocations() -> None:
    """Fix both thresholds for this process. Without effect on another C library than glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl, for example
        return
    mallopt(_M_MMAP_THRESHOLD, LARGE)
    mallopt(_M_TRIM_THRESHOLD, SPARE)
