"""Graphs on a CPU, in place of CUDA graphs: a replay calls the recorded function again, with the same tensors."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from kvasir.layers.attention_backends import choose_backend
from kvasir.layers.attention_backends.triton_paged import TritonBackend
from kvasir.layers.step_memory import DeviceMemory


@dataclass
class _Recording:
    compute: Callable[[], None]
    number: int
    replays: list[int]

    def replay(self) -> None:
        self.replays.append(self.number)
        self.compute()


class CpuRecorder:
    """A Recorder. `replays` has the number of the recording of each replay, in the order of recording."""

    def __init__(self) -> None:
        self.count = 0
        self.replays: list[int] = []

    def record(self, compute: Callable[[], None]) -> _Recording:
        compute()
        self.count += 1
        return _Recording(compute, self.count - 1, self.replays)


def capture_on_cpu(monkeypatch: pytest.MonkeyPatch) -> CpuRecorder:
    """Make new workers use the Triton kernels, a memory for steps, and this recorder, as on a GPU."""
    recorder = CpuRecorder()

    def device_memory(device: torch.device, num_bytes: int, table_numbers: int) -> DeviceMemory:
        return DeviceMemory(device, num_bytes, table_numbers)

    monkeypatch.setattr(choose_backend, "BACKENDS", (TritonBackend(device_type="cpu"),))
    monkeypatch.setattr("kvasir.worker.batch.inputs.step_memory", device_memory)
    monkeypatch.setattr("kvasir.worker.worker.CudaRecorder", lambda device: recorder)
    monkeypatch.setattr("kvasir.kernels.triton.work_list.MIN_SEGMENT_KEYS", 16)
    return recorder
