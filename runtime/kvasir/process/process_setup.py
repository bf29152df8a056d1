"""Prepares this process: its title, its limit of open files, its heap, and signals while it waits on a queue."""

import ctypes
import os
import resource
import signal
import threading
from collections.abc import Callable
from typing import Final

# Keep the environment, after the arguments: operators and tests read it in /proc.
_KEEP_ENVIRONMENT: Final = "SPT_NOENV"


def set_process_title(name: str) -> None:
    """Show this process as "kvasir: NAME" in ps, as far as its arguments leave room."""
    os.environ[_KEEP_ENVIRONMENT] = "1"  # before the library is imported
    from setproctitle import setproctitle

    setproctitle(f"kvasir: {name}")
    del os.environ[_KEEP_ENVIRONMENT]


MAX_OPEN_FILES: Final = 65536


def raise_open_files_limit() -> None:
    """Raise the soft limit to the hard one: every connection holds a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def wake_after_signals(wake: Callable[[], object]) -> None:
    """Call `wake` after each signal that has a handler. Main thread only; cannot be undone."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def work() -> None:
        while os.read(reader, 1):
            wake()

    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=work, name="signals", daemon=True).start()


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
