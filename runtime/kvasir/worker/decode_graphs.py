"""CUDA graphs: a step of decodes is given to the device as one launch, instead of hundreds.

Between two kernels of a decode the host takes longer to launch than the device to compute. A graph is captured
once for each size, with the sizes and addresses of all launches; a step of fewer rows is padded to the next size.
From replay to replay only the content of the step memory changes (step_memory.py). The largest size is captured
first, and all share one pool of memory: graphs are replayed one after the other, and by then the tensors of one
are not needed.

Captured are the gather of pending tokens, the forward pass and the logits. Sampling depends on the requests of a
step, and stays outside.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kvasir.worker.batch.inputs import StepBatch

Compute = Callable[[StepBatch], Tensor]


class Recording(Protocol):
    def replay(self) -> None:
        """Compute again, with the present content of the same addresses."""
        ...


class Recorder(Protocol):
    """Records the launches of a computation. Tests use one for a CPU."""

    def record(self, compute: Callable[[], Tensor]) -> tuple[Recording, Tensor]:
        """Return the recording and the tensor that each replay fills."""
        ...


class CudaRecorder:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, compute: Callable[[], Tensor]) -> tuple[Recording, Tensor]:
        compute()  # compiles kernels and sets up libraries, which cannot be captured
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = compute()
        return graph, result


@dataclass(frozen=True)
class _Captured:
    recording: Recording
    logits: Tensor  # [size, vocab_size]
    addresses: list[int]


class DecodeGraphs:
    """The graphs of one model runner. Its caches and step memory must outlive them.

    `compute` returns the logits [T, vocab_size] of a padded step. It is not kept, so that a runner and its graphs
    are freed together.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._captured: dict[int, _Captured] = {}

    def capture(self, batch: StepBatch, compute: Compute) -> None:
        """Capture the graph of the batch's size."""
        assert batch.padded_to is not None, "only padded steps can be captured"
        recording, logits = self._recorder.record(lambda: compute(batch))
        self._captured[batch.padded_to] = _Captured(recording, logits, _addresses(batch))

    def logits(self, batch: StepBatch, compute: Compute) -> Tensor:
        """Return the logits [R, vocab_size] of a padded step. They hold until the next one."""
        assert batch.padded_to is not None, "only padded steps have graphs"
        captured = self._captured.get(batch.padded_to)
        if captured is None:
            logits = compute(batch)
        else:
            assert captured.addresses == _addresses(batch), "a graph reads other addresses than the step's"
            captured.recording.replay()
            logits = captured.logits
        return logits[: len(batch.rows)]


def _addresses(batch: StepBatch) -> list[int]:
    assert batch.pending_rows is not None
    return [tensor.data_ptr() for tensor in (batch.token_ids, batch.pending_rows, batch.positions)]
