"""The groups of engines that share experts, over gloo."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from kvasir.parallel.group import Sending
from kvasir.parallel.meeting_point import MeetingPoint
from kvasir.process.failures import FailureError
from kvasir_contract.failure import Failure
from kvasir_contract.reasons import Reason

# A sleeping engine waits for a call.
_FOREVER_SECONDS: Final = 10.0**8


class EnginesLost(FailureError):
    def __init__(self, message: str) -> None:
        super().__init__(Failure(Reason.CRASH_LOOPING, message))


class EngineGroup:
    """One rank of each engine, for one thread."""

    def __init__(self, group: dist.ProcessGroup, timeout: float | None) -> None:
        # `timeout` in seconds. None: `recv` has no limit.
        self.rank: int = group.rank()
        self.size: int = group.size()
        self._group = group
        self._timeout = timeout
        self._longest_wait = timedelta(seconds=timeout or _FOREVER_SECONDS)

    def all_reduce(self, x: Tensor) -> Tensor:
        with _losses(self.size, self._timeout):
            self._group.allreduce([x]).wait()
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
        with _losses(self.size, self._timeout):
            self._group.allgather([parts], [x.contiguous()]).wait()
        return torch.cat(parts, dim=dim)

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        with _losses(self.size, self._timeout):
            self._group.broadcast(x, source).wait()
        return x

    def send(self, x: Tensor, target: int) -> Sending:
        with _losses(self.size, self._timeout):
            return self._group.send([x], target, 0)

    def recv(self, x: Tensor, source: int) -> Tensor:
        with _losses(self.size, self._timeout):
            self._group.recv([x], source, 0).wait(self._longest_wait)
        return x


class EngineWaves:
    def __init__(self, together: EngineGroup, calls: EngineGroup) -> None:
        # One thread sends with `calls`, another one receives.
        self._together = together
        self._calls = calls
        # Gloo reads it meanwhile.
        self._sent: tuple[Tensor, Sending] | None = None

    def call_next(self, wave: int) -> None:
        calls, call = self._calls, torch.tensor([wave])
        if self._sent is not None:
            with _losses(calls.size, None):
                self._sent[1].wait()
        self._sent = call, calls.send(call, (calls.rank + 1) % calls.size)

    def wait_for_call(self) -> int:
        calls = self._calls
        return int(calls.recv(torch.zeros(1, dtype=torch.int64), (calls.rank - 1) % calls.size))

    def any(self, flags: Sequence[bool]) -> list[bool]:
        return [count > 0 for count in self._together.all_reduce(torch.tensor(flags, dtype=torch.int64)).tolist()]


def connect(meeting: MeetingPoint, timeout: float) -> tuple[EngineGroup, EngineWaves]:
    experts = EngineGroup(meeting.group("experts", timeout), timeout)
    calls = EngineGroup(meeting.group("calls", timeout), None)
    return experts, EngineWaves(experts, calls)


@contextmanager
def _losses(size: int, timeout: float | None) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        cause = str(error).partition(". ")[0].rpartition("] ")[2] or str(error)
        hangs = "" if timeout is None else f", or has not answered for {timeout:.0f} s"
        raise EnginesLost(
            f"one of the {size} engines that share experts has ended{hangs} ({cause}): its log has the cause; all "
            "of them start again"
        ) from error
