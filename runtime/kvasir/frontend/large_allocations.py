"""Makes glibc return the memory of a large body to the system when the body is freed."""

import ctypes
from typing import Final

# The kernel clears all pages of a new mapping: for a body of 400 KB this would take half as long as the rest of its
# request. Smaller bodies fit into each other's gaps.
LARGE: Final = 2 * 2**20
# Free bytes that stay at the end of the heap, for the next request.
SPARE: Final = 4 * 2**20

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def return_large_allocations() -> None:
    # Unless they are fixed, glibc raises the size of mappings with each one that is freed, up to 32 MiB. Large
    # bodies would then come from the heap, where small objects keep their memory from being returned.
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl, for example
        return
    mallopt(_M_MMAP_THRESHOLD, LARGE)
    mallopt(_M_TRIM_THRESHOLD, SPARE)
