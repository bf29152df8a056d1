"""Copies the tokens of a step to the host without stopping the device."""

import torch
from torch import Tensor


class HostCopy:
    """`copied` is None if the numbers are on the host."""

    def __init__(self, numbers: Tensor, copied: torch.cuda.Event | None = None) -> None:
        self._numbers = numbers
        self._copied = copied

    def done(self) -> bool:
        return self._copied is None or bool(self._copied.query())

    def numbers(self) -> list[int]:
        if self._copied is not None:
            self._copied.synchronize()
        return self._numbers.tolist()


class HostCopies:
    # A separate stream: the next step does not wait for copies.
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def start(self, numbers: Tensor) -> HostCopy:
        # Copies [N] int64, when the device has computed them.
        if self._stream is None:
            return HostCopy(numbers)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            there = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            there.copy_(numbers, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record(self._stream)
        numbers.record_stream(self._stream)  # not reused before the copy
        return HostCopy(there, copied)
