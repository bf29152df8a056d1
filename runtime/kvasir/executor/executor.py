from collections.abc import Callable
from typing import Protocol

from kvasir.layers.kv import KVCacheConfig
from kvasir.worker.kv_memory.block_bytes import BlockBytes
from kvasir.worker.step import LateInput, StepInput, StepOutput
from kvasir.worker.worker_calls import WorkerCall, WorkerResult


class SubmittedStep(Protocol):
    """A step that was submitted: a Future, or less if nothing has to wait for it."""

    def done(self) -> bool: ...

    def result(self) -> StepOutput:
        """Wait for the step and return its output, or raise its error."""
        ...


class Executor(Protocol):
    """Runs the workers. Order of the calls: start, kv_layout, allocate_kv_cache, warm_up, submit once per step,
    shutdown.
    """

    max_in_flight: int  # number of steps that may be submitted before the result of the first one is taken

    def start(self, progress: Callable[[int, int], None], failed: Callable[[Exception], None]) -> None:
        """Start the workers and read the weights; `progress` gets the bytes done and in all.

        `failed` is called at most once, from any thread, if a worker ends later on; every other method then raises
        the same error. Raises ConfigError, ModelLoadError and FailureError.
        """
        ...

    def kv_layout(self) -> KVCacheConfig:
        """Return the KV groups of the loaded model, and how many blocks every worker has memory for. Raises
        ConfigError.

        Steps carry new blocks for each group, in this order.
        """
        ...

    def allocate_kv_cache(self, num_blocks: int, max_model_len: int) -> None:
        """Allocate KV blocks with the ids 1 to num_blocks. Raises ConfigError.

        `max_model_len`: tokens of the longest request that the engine accepts with this cache.
        """
        ...

    def warm_up(self) -> None: ...

    def submit(self, step: StepInput) -> SubmittedStep:
        """Run one step after all that were submitted before; it may be computed before this returns.

        Take the results in the order of the steps, in the thread that submits them.
        """
        ...

    def supply(self, late: LateInput) -> None:
        """Send the masks of a submitted step, in the order of the steps and before its result is taken.

        Workers wait for masks between forward pass and sampling.
        """
        ...

    def call(self, call: WorkerCall) -> list[WorkerResult]:
        """Run an operation on every worker after the steps that were submitted; return the results by rank."""
        ...

    def work_ahead(self) -> bool:
        """Do some milliseconds of work that later steps need, while there is no step. Return False if nothing is
        left.
        """
        ...

    def check_idle(self) -> None:
        """Raise AssertionError if a worker still holds a request while the engine has none."""
        ...

    def block_bytes(self) -> BlockBytes | None:
        """Return the bytes of the KV blocks; None if they are not in the memory of this process."""
        ...

    def where(self) -> str:
        """Return what each worker process is doing, "" if there are none. Any thread."""
        ...

    def shutdown(self) -> None:
        """Free the workers; may be called at any time and more than once."""
        ...
