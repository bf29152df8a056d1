"""Copies the arrays of a step to the device at once, to the same addresses, for CUDA graphs.

Tensors are valid from `send` to the next `send`. Arrays of the same sizes in the same order get the same addresses.
"""

import logging
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

log = logging.getLogger(__name__)

Array = npt.NDArray[np.generic]

# Bytes. Triton specialises kernels for aligned addresses.
_ALIGNMENT: Final = 16
# The device may still read the last two steps.
_TURNS: Final = 3
# Bounds memory: prefills always have new shapes.
_MAX_VIEWS: Final = 4096


class StepMemory(Protocol):
    tables: Tensor  # int32
    addresses: list[int]  # of the step's tensors so far, in order
    overflows: bool

    def begin(self) -> None: ...

    def put(self, array: Array) -> Tensor:
        """Return the tensor on the device, whose content is undefined before `send`."""
        ...

    def put_table(self, table: npt.NDArray[np.int32]) -> int:
        """Append a block table to `tables`; return its start."""
        ...

    def send(self) -> None: ...


def step_memory(device: torch.device, num_bytes: int, table_numbers: int) -> "StepMemory":
    if device.type == "cpu":
        return HostMemory(table_numbers)
    return DeviceMemory(device, num_bytes, table_numbers)


def copied(array: Array, device: torch.device) -> Tensor:
    # Without pinning, CUDA may wait for the stream.
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


class HostMemory:
    def __init__(self, table_numbers: int) -> None:
        self._tables: npt.NDArray[np.int32] = np.zeros(table_numbers, np.int32)  # lazily allocated
        self.tables = torch.from_numpy(self._tables)
        self.addresses: list[int] = []  # empty: there are no graphs
        self.overflows = False
        self._used = 0

    def begin(self) -> None:
        self._used = 0

    def put(self, array: Array) -> Tensor:
        return torch.from_numpy(array)

    def put_table(self, table: npt.NDArray[np.int32]) -> int:
        start = self._used
        self._used += table.size
        self._tables[start : self._used] = table.reshape(-1)
        return start

    def send(self) -> None:
        pass


class _Staging:
    def __init__(self, num_bytes: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.memory = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        self.bytes: npt.NDArray[np.uint8] = self.memory.numpy()
        self._copied = torch.cuda.Event() if pinned else None

    def wait(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()

    def sent(self) -> None:
        if self._copied is not None:
            self._copied.record()


class DeviceMemory:
    """Arrays that do not fit are copied separately, to new addresses."""

    def __init__(self, device: torch.device, num_bytes: int, table_numbers: int) -> None:
        self._device = device
        self._num_bytes = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        size = self._num_bytes + 4 * table_numbers
        self._memory = torch.zeros(size, dtype=torch.uint8, device=device)
        self._first_address = self._memory.data_ptr()
        self.tables = self._memory[self._num_bytes :].view(torch.int32)
        self._stagings = [_Staging(size, device) for _ in range(_TURNS)]
        self._views: dict[tuple[int, str, tuple[int, ...]], Tensor] = {}
        self._turn = 0
        self._used = 0
        self._table_numbers = 0
        self.addresses: list[int] = []
        self.overflows = self._has_warned = False

    def begin(self) -> None:
        self._turn = (self._turn + 1) % _TURNS
        self._stagings[self._turn].wait()
        self._used = self._table_numbers = 0
        self.addresses.clear()
        self.overflows = False

    def put(self, array: Array) -> Tensor:
        start, size = self._used, array.nbytes
        if start + size > self._num_bytes:
            return self._apart(array)
        flat = np.ascontiguousarray(array).reshape(-1)
        self._stagings[self._turn].bytes[start : start + size] = flat.view(np.uint8)
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        self.addresses.append(self._first_address + start)
        return self._view(start, array)

    def _apart(self, array: Array) -> Tensor:
        self.overflows = True
        if not self._has_warned:
            self._has_warned = True
            log.warning("a step needs more than the %d bytes of its memory: it takes longer", self._num_bytes)
        tensor = copied(array, self._device)
        self.addresses.append(tensor.data_ptr())
        return tensor

    def _view(self, start: int, array: Array) -> Tensor:
        key = (start, array.dtype.char, array.shape)
        view = self._views.get(key)
        if view is None:
            if len(self._views) == _MAX_VIEWS:
                self._views.clear()
            memory = self._memory[start : start + array.nbytes]
            view = self._views[key] = memory.view(_TYPES[array.dtype]).view(array.shape)
        return view

    def put_table(self, table: npt.NDArray[np.int32]) -> int:
        start = self._table_numbers
        self._table_numbers += table.size
        first = self._num_bytes + 4 * start
        flat = np.ascontiguousarray(table).reshape(-1)
        self._stagings[self._turn].bytes[first : first + flat.nbytes] = flat.view(np.uint8)
        return start

    def send(self) -> None:
        staging = self._stagings[self._turn]
        first = self._num_bytes
        for start, end in ((0, self._used), (first, first + 4 * self._table_numbers)):
            if end > start:
                self._memory[start:end].copy_(staging.memory[start:end], non_blocking=True)
        staging.sent()


_TYPES: Final = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.bool_): torch.bool,
}
