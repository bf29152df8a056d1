import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from kvasir.executor.processes.started_worker import StartedWorker, read_stack


@pytest.fixture
def stacks() -> Iterator[tuple[int, int]]:
    """The two ends of a pipe. This process writes a stack to it at SIGUSR1, as workers do."""
    reading, writing = os.pipe()
    before = signal.signal(signal.SIGUSR1, lambda *_: os.write(writing, b"new stack"))
    yield reading, writing
    signal.signal(signal.SIGUSR1, before)
    os.close(writing)


def test_late_stack_does_not_count_for_the_next_question(stacks: tuple[int, int]) -> None:
    reading, writing = stacks
    os.write(writing, b"old stack")
    own = os.pidfd_open(os.getpid())
    assert read_stack(own, reading) == "new stack"
    os.close(own)
    os.close(reading)


def test_closed_worker_has_no_place(stacks: tuple[int, int]) -> None:
    worker = StartedWorker.__new__(StartedWorker)  # without a process
    worker._control = socket.socket()
    worker._asking, worker._closed = threading.Lock(), False
    worker._pidfd, worker._stacks = os.pidfd_open(os.getpid()), stacks[0]
    worker.close()
    assert worker.place() == ""
