"""The interface through which the engine runs its workers: in one process, in several, or on several machines."""

from collections.abc import Callable
from typing import Protocol

from kvasir.layers.kv import KVCacheConfig
from kvasir.worker.kv_memory.block_bytes import BlockBytes
from kvasir.worker.step import LateInput, StepInput, StepOutput
from kvasir.worker.worker_calls import WorkerCall, WorkerResult


class SubmittedStep(Protocol):
    """A step that was submitted: a Future, or less where nothing has to wait for it."""

    def done(self) -> bool:
        """Return whether `result` need not wait."""
        ...

    def result(self) -> StepOutput:
        """Wait for the step and return its output, or raise its error."""
        ...


class Executor(Protocol):
    """Called by the engine in this order: start, kv_layout, allocate_kv_cache, warm_up, submit once per step,
    shutdown; and work_ahead in between, while there is no step."""

    max_in_flight: int
    """The number of steps that may be submitted before the result of the first one is taken."""

    def start(self, progress: Callable[[int, int], None], failed: Callable[[Exception], None]) -> None:
        """Start the workers and read the weights; `progress` gets the bytes done and in all.

        `failed` is called at most once, from any thread, if a worker ends later on; every other method then raises
        the same error. Raises ConfigError, ModelLoadError and FailureError.
        """
        ...

    def kv_layout(self) -> KVCacheConfig:
        """Return the KV groups of the loaded model, and how many blocks every worker has memory for.

        The steps carry new blocks for each group, in this order. Raises ConfigError.
        """
        ...

    def allocate_kv_cache(self, num_blocks: int, max_model_len: int) -> None:
        """Allocate KV blocks for requests; their ids are 1 to num_blocks. Raises ConfigError.

        `max_model_len`: tokens of the longest request that the engine accepts with this cache.
        """
        ...

    def warm_up(self) -> None: ...

    def submit(self, step: StepInput) -> SubmittedStep:
        """Run one step after all that were submitted before.

        With one step in flight an executor may compute it before it returns. Take the results in the order of the
        steps, in the thread that submits them.
        """
        ...

    def supply(self, late: LateInput) -> None:
        """Send the masks of a submitted step with masked rows: before its result is taken, and in the order of the
        steps. The workers wait for them between the forward pass and the sampling."""
        ...

    def call(self, call: WorkerCall) -> list[WorkerResult]:
        """Run an operation on every worker after the steps that were submitted; return the results by rank."""
        ...

    def work_ahead(self) -> bool:
        """Do some milliseconds of work that later steps need; False: nothing is left."""
        ...

    def check_idle(self) -> None:
        """Raises AssertionError if a worker still holds a request while the engine has none."""
        ...

    def block_bytes(self) -> BlockBytes | None:
        """Return the bytes of the KV blocks; None if they are not in the memory of this process."""
        ...

    def where(self) -> str:
        """Return what each worker process is doing, for the watchdog; "" if there are none. Any thread."""
        ...

    def shutdown(self) -> None:
        """Free the workers; may be called at any time and more than once."""
        ...
