"""Graphs on a CPU, in place of CUDA graphs: a replay calls the recorded function again, with the same tensors."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kvasir.layers.attention_backends import choose_backend
from kvasir.layers.attention_backends.triton_paged import TritonBackend
from kvasir.layers.step_memory import DeviceMemory


@dataclass
class _Replayed:
    compute: Callable[[], Tensor]
    result: Tensor
    replays: "list[int]"

    def replay(self) -> None:
        self.replays.append(len(self.result))
        self.result.copy_(self.compute())


class CpuRecorder:
    """A Recorder. `replays` has the size of each replay."""

    def __init__(self) -> None:
        self.recorded: list[int] = []
        self.replays: list[int] = []

    def record(self, compute: Callable[[], Tensor]) -> tuple[_Replayed, Tensor]:
        result = compute()
        self.recorded.append(len(result))
        return _Replayed(compute, result, self.replays), result


def capture_on_cpu(monkeypatch: pytest.MonkeyPatch) -> CpuRecorder:
    """Make workers use the Triton kernels, a memory for steps, and this recorder, as on a GPU."""
    recorder = CpuRecorder()

    def device_memory(device: torch.device, num_bytes: int, table_numbers: int) -> DeviceMemory:
        return DeviceMemory(device, num_bytes, table_numbers)

    monkeypatch.setattr(choose_backend, "BACKENDS", (TritonBackend(device_type="cpu"),))
    monkeypatch.setattr("kvasir.worker.batch.inputs.step_memory", device_memory)
    monkeypatch.setattr("kvasir.worker.worker.CudaRecorder", lambda device: recorder)
    monkeypatch.setattr("kvasir.kernels.triton.work_list.MIN_SEGMENT_KEYS", 16)
    return recorder
