"""Copies to the host that a test can follow, in place of a device's: they have arrived when they are waited for."""

from torch import Tensor

from kvasir.worker.launch.host_copy import HostCopies, HostCopy


class LateCopies(HostCopies):
    def __init__(self) -> None:
        self.trace: list[str] = []
        """`start` and `wait` with the number of the copy, in their order."""
        self._count = 0

    def start(self, numbers: Tensor) -> HostCopy:
        self._count += 1
        self.trace.append(f"start {self._count}")
        return _LateCopy(numbers, self._count, self.trace)


class _LateCopy(HostCopy):
    def __init__(self, numbers: Tensor, number: int, trace: list[str]) -> None:
        super().__init__(numbers)
        self._number, self._trace = number, trace

    def done(self) -> bool:
        return False

    def numbers(self) -> list[int]:
        self._trace.append(f"wait {self._number}")
        return super().numbers()
