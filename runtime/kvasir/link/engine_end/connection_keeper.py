"""The program that shuts an engine's connections down when the engine was killed. Started by death_watch.py.

    python -I -S connection_keeper.py CONTROL_FD MUTEX_FD

It has a duplicate of each connection of the link, and waits for the robust mutex that the engine's main thread
holds. Standard library only: it takes 10 MB and ends with the engine.
"""

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import sys
import threading

EOWNERDEAD = 130


class ConnectionKeeper:
    """The duplicates by the engine's number for the connection."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._connections: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def shut_down_all(self) -> None:
        with self._lock:
            for connection in self._connections.values():
                shut_down(connection)

    def receive(self) -> None:
        """Hold and release connections until the engine closes its end."""
        while True:
            number, descriptors, _, _ = socket.recv_fds(self._control, 32, 1)
            if not number:
                return
            with self._lock:
                if (old := self._connections.pop(number, None)) is not None:
                    os.close(old)
                if descriptors:
                    self._connections[number] = descriptors[0]


def shut_down(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # the other side has closed it
        socket.socket(fileno=descriptor).shutdown(socket.SHUT_RDWR)


def wait_for_death(mutex_descriptor: int) -> bool:
    """Block until the owner of the mutex has died; return False if it released the mutex."""
    memory = mmap.mmap(mutex_descriptor, mmap.PAGESIZE)
    mutex = ctypes.byref(ctypes.c_char.from_buffer(memory))
    return bool(ctypes.CDLL(None).pthread_mutex_lock(mutex) == EOWNERDEAD)


def main() -> None:
    control, mutex = int(sys.argv[1]), int(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM):  # for the engine, which drains
        signal.signal(number, signal.SIG_IGN)
    keeper = ConnectionKeeper(socket.socket(fileno=control))

    def watch() -> None:
        if wait_for_death(mutex):
            keeper.shut_down_all()
            os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    keeper.receive()
    os._exit(0)  # the thread may still wait in the kernel


if __name__ == "__main__":
    main()
