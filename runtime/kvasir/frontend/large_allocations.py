"""Makes glibc return the memory of a freed large body to the system."""

import ctypes
from typing import Final

# The kernel clears the pages of a new mapping, which for 400 KB takes half as long as the rest of the request.
# Smaller bodies fill each other's gaps.
LARGE: Final = 2 * 2**20
# free bytes at the end of the heap, for the next request
SPARE: Final = 4 * 2**20

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def return_large_allocations() -> None:
    # By default, each freed mapping raises the threshold, up to 32 MiB. Large bodies would then come from the heap,
    # where small objects prevent their return.
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl, for example
        return
    mallopt(_M_MMAP_THRESHOLD, LARGE)
    mallopt(_M_TRIM_THRESHOLD, SPARE)
