"""A group whose ranks are threads of one process: quick, and free of sockets.

results = run_ranks(2, lambda group: group.all_reduce(torch.ones(3)))
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch import Tensor

from kvasir.parallel.group import Sending

T = TypeVar("T")
WAIT = 30.0


class _Sending:
    """A tensor that is read when it is received: a change before that would arrive."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.received = threading.Event()

    def wait(self) -> None:
        assert self.received.wait(WAIT), "no rank has received the tensor"


class Meeting:
    """Where the ranks of one group exchange tensors."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=WAIT)
        self.given: list[Tensor | None] = [None] * size
        self.sent = {(source, target): SimpleQueue[_Sending]() for source in range(size) for target in range(size)}


class ThreadGroup:
    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank = rank
        self.size = meeting.size
        self.operations = 0
        self._meeting = meeting

    def all_reduce(self, x: Tensor) -> Tensor:
        total = torch.stack(self._exchange(x)).sum(dim=0, dtype=x.dtype)
        return x.copy_(total)

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return torch.cat(self._exchange(x), dim=dim)

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        return x.copy_(self._exchange(x)[source])

    def send(self, x: Tensor, target: int) -> Sending:
        sending = _Sending(x)
        self._meeting.sent[self.rank, target].put(sending)
        return sending

    def recv(self, x: Tensor, source: int) -> Tensor:
        sending = self._meeting.sent[source, self.rank].get(timeout=WAIT)
        x.copy_(sending.tensor)
        sending.received.set()
        return x

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self.operations += 1
        meeting = self._meeting
        meeting.given[self.rank] = x.clone()
        meeting.barrier.wait()
        tensors = [tensor for tensor in meeting.given if tensor is not None]
        meeting.barrier.wait()  # no rank gives its next tensor before all have read
        shapes = {(tensor.shape, tensor.dtype) for tensor in tensors}
        assert len(shapes) == 1, f"the ranks disagree: {shapes}"
        return tensors


def run_ranks(size: int, work: Callable[[ThreadGroup], T]) -> list[T]:
    """Return what `work` returns on each rank; raise what a rank raises."""
    [results] = run_grid(1, size, lambda _, group: work(group))
    return results


def run_grid(rows: int, columns: int, work: Callable[[ThreadGroup, ThreadGroup], T]) -> list[list[T]]:
    """Return what `work` returns on each rank of a grid, by row and column; raise what a rank raises.

    It gets the groups of the rank's column, in which its row is its rank, and of its row.
    """
    in_rows = [Meeting(columns) for _ in range(rows)]
    in_columns = [Meeting(rows) for _ in range(columns)]

    def run(row: int, column: int) -> T:
        try:
            with torch.inference_mode():
                return work(ThreadGroup(row, in_columns[column]), ThreadGroup(column, in_rows[row]))
        except BaseException:
            for meeting in (*in_rows, *in_columns):
                meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(rows * columns) as threads:
        futures = [threads.submit(run, row, column) for row in range(rows) for column in range(columns)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error  # a broken barrier is the consequence of another rank's error
    results = [future.result() for future in futures]
    return [results[row * columns : (row + 1) * columns] for row in range(rows)]
