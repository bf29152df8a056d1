"""Executor: the interface through which an engine runs its workers."""

from collections.abc import Callable
from typing import Protocol

from kvasir.layers.kv import KVCacheConfig
from kvasir.worker.kv_memory.block_bytes import BlockBytes
from kvasir.worker.step import LateInput, StepInput, StepOutput
from kvasir.worker.worker_calls import WorkerCall, WorkerResult


class SubmittedStep(Protocol):
    def done(self) -> bool: ...

    def result(self) -> StepOutput: ...


class Executor(Protocol):
    max_in_flight: int  # steps that may be submitted before the first one's result is taken

    def start(self, progress: Callable[[int, int], None], failed: Callable[[Exception], None]) -> None:
        """Load the weights. Raises ConfigError, ModelLoadError and FailureError.

        `progress` gets the bytes done and in all. `failed` is called at most once, from any thread, if a worker
        ends later; then every other method raises the error.
        """
        ...

    def kv_layout(self) -> KVCacheConfig:
        """Return the model's KV groups, in the order of a step's new blocks, and the blocks that have room."""
        ...

    def allocate_kv_cache(self, num_blocks: int, max_model_len: int) -> None:
        """Allocate blocks 1 to num_blocks, for requests of up to `max_model_len` tokens. Raises ConfigError."""
        ...

    def warm_up(self) -> None: ...

    def submit(self, step: StepInput) -> SubmittedStep:
        """Run a step after the earlier ones. Take results in order, in the thread that submits."""
        ...

    def supply(self, late: LateInput) -> None:
        """Send a submitted step's masks, in the order of the steps, before taking its result."""
        ...

    def call(self, call: WorkerCall) -> list[WorkerResult]:
        """Run an operation on every worker after the submitted steps; return the results by rank."""
        ...

    def work_ahead(self) -> bool:
        """Work some milliseconds for later steps. Return False if nothing is left."""
        ...

    def check_idle(self) -> None:
        """Raise AssertionError if a worker holds a request while the engine has none."""
        ...

    def block_bytes(self) -> BlockBytes | None:
        """Return the bytes of the KV blocks; None if this process does not have them."""
        ...

    def where(self) -> str:
        """Return what each worker process is doing. Any thread."""
        ...

    def shutdown(self) -> None: ...
