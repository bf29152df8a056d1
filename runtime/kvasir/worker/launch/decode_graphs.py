"""CUDA graphs of decode steps, from the gather of pending tokens to the logits, at fixed addresses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kvasir.worker.batch.inputs import StepBatch

Compute = Callable[[StepBatch], Tensor]


class Recording(Protocol):
    def replay(self) -> None: ...


class Recorder(Protocol):
    def record(self, compute: Callable[[], None]) -> Recording: ...


class CudaRecorder:
    """Raises RuntimeError for a computation that cannot be captured, such as one that waits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, compute: Callable[[], None]) -> Recording:
        compute()  # compiles kernels and sets up libraries
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                compute()
        except RuntimeError as error:
            raise RuntimeError(
                f"a step of this model cannot be captured as a CUDA graph: start with --enforce-eager ({error})"
            ) from error
        return graph


def _key(batch: StepBatch) -> tuple[int, bool]:
    # A graph with adapters costs steps without any some launches.
    assert batch.padded_to is not None, "only padded steps have graphs"
    return batch.padded_to, batch.adapter_slots is not None


@dataclass(frozen=True)
class _Captured:
    recording: Recording
    addresses: tuple[int, ...]


class DecodeGraphs:
    """Caches and step memory of the model runner must outlive the graphs."""

    # `compute` is not kept: that would be a reference cycle with the runner.
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._captured: dict[tuple[int, bool], _Captured] = {}  # by size, and whether tokens have adapters
        self._logits: Tensor | None = None  # [largest size, vocab_size]

    def capture(self, batch: StepBatch, compute: Compute) -> None:
        # The largest comes first: all share its memory pool.
        size = batch.padded_to
        assert size is not None, "only padded steps can be captured"
        if self._logits is None:
            self._logits = torch.empty_like(compute(batch))
        logits = self._logits[:size]

        def fill() -> None:
            logits.copy_(compute(batch))

        self._captured[_key(batch)] = _Captured(self._recorder.record(fill), batch.addresses)

    def logits(self, batch: StepBatch, compute: Compute) -> Tensor:
        """Return the logits [R, vocab_size] of a padded step. The next call overwrites them."""
        assert batch.sampled is None, "a padded step samples after each of its tokens"
        captured = self._captured.get(_key(batch))
        if captured is None:
            return compute(batch)[: len(batch.rows)]
        assert captured.addresses == batch.addresses, "a graph reads other addresses than the step's"
        assert self._logits is not None
        captured.recording.replay()
        return self._logits[: len(batch.rows)]
