"""Copies the tokens of a step to the host without stopping the device."""

from typing import Protocol

import torch
from torch import Tensor


class HostCopy(Protocol):
    def done(self) -> bool: ...

    def numbers(self) -> list[int]: ...


class HostCopies(Protocol):
    def start(self, numbers: Tensor) -> HostCopy:
        # Copies [N] int64, when the device has computed them.
        ...


def host_copies(device: torch.device) -> HostCopies:
    return _StreamCopies(device) if device.type == "cuda" else _HostCopies()


class _OnHost:
    def __init__(self, numbers: Tensor) -> None:
        self._numbers = numbers

    def done(self) -> bool:
        return True

    def numbers(self) -> list[int]:
        return self._numbers.tolist()


class _HostCopies:
    def start(self, numbers: Tensor) -> HostCopy:
        return _OnHost(numbers)


class _OnStream:
    def __init__(self, numbers: Tensor, copied: torch.cuda.Event) -> None:
        self._numbers = numbers
        self._copied = copied

    def done(self) -> bool:
        arrived: bool = self._copied.query()
        return arrived

    def numbers(self) -> list[int]:
        self._copied.synchronize()
        return self._numbers.tolist()


class _StreamCopies:
    # A separate stream: the next step does not wait for copies.
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def start(self, numbers: Tensor) -> HostCopy:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            there = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            there.copy_(numbers, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record(self._stream)
        numbers.record_stream(self._stream)  # not reused before the copy
        return _OnStream(there, copied)
