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
    """Runs the workers: start, kv_layout, allocate_kv_cache, warm_up, then submit once per step, and shutdown at
    any time.
    """

    max_in_flight: int  # number of steps that may be submitted before the result of the first one is taken

    def start(self, progress: Callable[[int, int], None], failed: Callable[[Exception], None]) -> None:
        """Load the weights; `progress` gets the bytes done and in all. Raises ConfigError, ModelLoadError and
        FailureError.

        `failed` is called at most once, from any thread, if a worker ends later on; every other method then raises
        the error.
        """
        ...

    def kv_layout(self) -> KVCacheConfig:
        """Return the KV groups of the model, in the order of a step's new blocks, and the blocks that have room."""
        ...

    def allocate_kv_cache(self, num_blocks: int, max_model_len: int) -> None:
        """Allocate KV blocks 1 to num_blocks, for requests of up to `max_model_len` tokens. Raises ConfigError."""
        ...

    def warm_up(self) -> None: ...

    def submit(self, step: StepInput) -> SubmittedStep:
        """Run one step after all that were submitted. Take results in their order, in the thread that submits."""
        ...

    def supply(self, late: LateInput) -> None:
        """Send the masks of a submitted step, in the order of the steps and before its result is taken."""
        ...

    def call(self, call: WorkerCall) -> list[WorkerResult]:
        """Run an operation on every worker after the submitted steps; return the results by rank."""
        ...

    def work_ahead(self) -> bool:
        """Do some milliseconds of work for later steps, while there is none. Return False if nothing is left."""
        ...

    def check_idle(self) -> None:
        """Raise AssertionError if a worker still holds a request while the engine has none."""
        ...

    def block_bytes(self) -> BlockBytes | None:
        """Return the bytes of the KV blocks; None if they are not in the memory of this process."""
        ...

    def where(self) -> str:
        """Return what each worker process is doing. Any thread."""
        ...

    def shutdown(self) -> None: ...
