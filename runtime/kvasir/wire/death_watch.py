"""Ends the connections of a killed process at once; Linux closes them only after freeing its memory.

Before that, the kernel marks the robust mutexes of each thread and wakes a waiter: a small process with duplicates
of the connections.
"""

import ctypes
import errno
import logging
import mmap
import os
import socket
import subprocess
import sys
import threading
from typing import Final

from kvasir.wire import connection_keeper

log = logging.getLogger(__name__)

_PROCESS_SHARED: Final = 1
_ROBUST: Final = 1
_ATTRIBUTE_BYTES: Final = 64
# Never unmapped: the C library keeps a list in their memory.
_mutexes: Final[list[mmap.mmap]] = []


class DeathWatch:
    """Created in the main thread, used in the link's thread."""

    def __init__(self) -> None:
        """Raises OSError if the process cannot be started."""
        assert threading.current_thread() is threading.main_thread(), "the mutex is released with its thread"
        descriptor = _locked_mutex()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._numbers: set[int] = set()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    (sys.executable, "-I", "-S", connection_keeper.__file__, str(theirs.fileno()), str(descriptor)),
                    pass_fds=(theirs.fileno(), descriptor),
                    stdin=subprocess.DEVNULL,
                )
        except OSError:
            self._control.close()
            raise
        finally:
            os.close(descriptor)

    def hold(self, number: int, descriptor: int) -> None:
        self._numbers.add(number)
        self._send(number, [descriptor])

    def release(self, number: int) -> None:
        # The duplicate would keep the connection open.
        if number in self._numbers:
            self._numbers.remove(number)
            self._send(number, [])

    def close(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait()

    def _send(self, number: int, descriptors: list[int]) -> None:
        if self._control.fileno() < 0:
            return
        try:
            socket.send_fds(self._control, [b"%d" % number], descriptors)
        except OSError as error:
            if error.errno == errno.EBADF:  # ZMQ has closed it and will report that
                return
            log.warning("frontends will notice a kill of this engine late: its connection keeper failed: %s", error)
            self.close()


def start_death_watch() -> DeathWatch | None:
    try:
        return DeathWatch()
    except (OSError, AttributeError) as error:  # AttributeError: no Linux
        log.warning("frontends will notice a kill of this engine late: %s", error)
        return None


def _locked_mutex() -> int:
    descriptor = os.memfd_create("kvasir-death-watch")
    os.ftruncate(descriptor, mmap.PAGESIZE)
    memory = mmap.mmap(descriptor, mmap.PAGESIZE)
    _mutexes.append(memory)
    mutex = ctypes.byref(ctypes.c_char.from_buffer(memory))
    attributes = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
    libc = ctypes.CDLL(None)
    for code in (
        libc.pthread_mutexattr_init(attributes),
        libc.pthread_mutexattr_setpshared(attributes, _PROCESS_SHARED),
        libc.pthread_mutexattr_setrobust(attributes, _ROBUST),
        libc.pthread_mutex_init(mutex, attributes),
        libc.pthread_mutex_lock(mutex),
    ):
        if code != 0:
            os.close(descriptor)
            raise OSError(code, os.strerror(code))
    return descriptor
