"""The interface through which the engine runs its workers: in one process, in several, or on several machines."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from kvasir.layers.kv import KVGroup
from kvasir.worker.step import StepInput, StepOutput


class Executor(Protocol):
    """Called by the engine in this order: load, kv_groups, allocate_kv_cache, warm_up, execute once per step,
    shutdown; and work_ahead in between, while there is no step."""

    def load(self, progress: Callable[[int, int], None]) -> None:
        """Read the weights; `progress` gets the bytes done and in all. Raises ConfigError, ModelLoadError."""
        ...

    def kv_groups(self) -> tuple[KVGroup, ...]:
        """Return the KV groups of the loaded model. The steps carry new blocks for each of them, in this order."""
        ...

    def allocate_kv_cache(self) -> int:
        """The number of KV blocks for requests; their ids are 1 to n. Raises ConfigError."""
        ...

    def warm_up(self) -> None: ...

    def execute(self, step: StepInput) -> StepOutput:
        """Run one step and wait for its tokens."""
        ...

    def submit(self, step: StepInput) -> Future[StepOutput]:
        """Run one step after all that were submitted before; if nothing overlaps it, before this returns.

        An engine calls only this; `execute` is for tests and benchmarks."""
        ...

    def work_ahead(self) -> bool:
        """Do some milliseconds of work that later steps need; False: nothing is left."""
        ...

    def check_idle(self) -> None:
        """Raises AssertionError if a worker still holds a request while the engine has none."""
        ...

    def shutdown(self) -> None:
        """Free the workers; may be called at any time and more than once."""
        ...
