"""Shuts an engine's connections down when the engine was killed; see death_watch.py.

python -I -S connection_keeper.py CONTROL_FD MUTEX_FD
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


def receive(control: socket.socket) -> list[int]:
    """Hold and release connections until the control socket ends; return the rest."""
    held: dict[bytes, int] = {}
    while True:
        number, descriptors, _, _ = socket.recv_fds(control, 32, 1)
        if not number:
            return list(held.values())
        if (old := held.pop(number, None)) is not None:
            os.close(old)
        if descriptors:
            held[number] = descriptors[0]


def shut_down(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        socket.socket(fileno=descriptor).shutdown(socket.SHUT_RDWR)


def wait_for_death(mutex_descriptor: int) -> bool:
    """Return False if the owner of the mutex released it instead of dying."""
    memory = mmap.mmap(mutex_descriptor, mmap.PAGESIZE)
    mutex = ctypes.byref(ctypes.c_char.from_buffer(memory))
    return bool(ctypes.CDLL(None).pthread_mutex_lock(mutex) == EOWNERDEAD)


def main() -> None:
    control, mutex = int(sys.argv[1]), int(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM):  # the engine handles them
        signal.signal(number, signal.SIG_IGN)
    connections = socket.socket(fileno=control)
    dead = threading.Event()

    def watch() -> None:
        if wait_for_death(mutex):
            dead.set()
            connections.shutdown(socket.SHUT_RD)  # earlier messages are still received

    threading.Thread(target=watch, daemon=True).start()
    held = receive(connections)
    if dead.is_set():
        for descriptor in held:
            shut_down(descriptor)
    os._exit(0)  # the thread may still wait in the kernel


if __name__ == "__main__":
    main()
