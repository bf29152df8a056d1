"""One worker in the engine's own process.

With overlapped steps another thread computes, and the engine's thread fills masks meanwhile. A GPU computes while
the engine's thread goes on.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import torch

from kvasir.config.resolve import ResolvedEngine
from kvasir.executor.executor import SubmittedStep
from kvasir.executor.worker_host import WorkerHost
from kvasir.hub.model_info import ModelInfo
from kvasir.layers.kv import KVCacheConfig
from kvasir.parallel.parallel_state import SINGLE, ParallelState
from kvasir.worker.kv_memory.block_bytes import BlockBytes
from kvasir.worker.launch.launched_step import LaunchedStep
from kvasir.worker.pooling_worker import PoolingWorker
from kvasir.worker.step import LateInput, StepInput, StepOutput
from kvasir.worker.worker import Worker
from kvasir.worker.worker_calls import WorkerCall, WorkerResult


@dataclass(slots=True)
class _ComputedStep:
    # A Future would cost every step its locks.

    output: StepOutput

    def done(self) -> bool:
        return True

    def result(self) -> StepOutput:
        return self.output


@dataclass(slots=True)
class _DeferredStep:
    host: WorkerHost
    step: StepInput
    late: LateInput | None = None

    def done(self) -> bool:
        return False

    def result(self) -> StepOutput:
        late = self.late
        assert late is not None, "the masks of the step were not supplied"
        return self.host.execute(self.step, lambda: late)

    def supply(self, late: LateInput) -> None:
        self.late = late


@dataclass(slots=True)
class _MaskedStep:
    """A step of another thread that waits for its masks before sampling."""

    late: "Future[LateInput]" = field(default_factory=Future)
    output: "Future[StepOutput]" = field(default_factory=Future)

    def done(self) -> bool:
        return self.output.done()

    def result(self) -> StepOutput:
        assert self.late.done(), "the masks of the step were not supplied"
        return self.output.result()

    def supply(self, late: LateInput) -> None:
        self.late.set_result(late)


class InProcessExecutor:
    def __init__(
        self,
        settings: ResolvedEngine,
        model: ModelInfo,
        parallel: ParallelState = SINGLE,
        *,
        launches: bool | None = None,
    ) -> None:
        # `launches`: the device computes while the submitting thread goes on, as a GPU does
        self.max_in_flight = 2 if settings.async_scheduling else 1
        host = WorkerHost(settings, model, parallel)
        self._host: WorkerHost | None = host
        self._launches = host.launches and (settings.device != "cpu" if launches is None else launches)
        self._unsupplied: dict[int, _DeferredStep | _MaskedStep | LaunchedStep] = {}  # by step
        # torch counts threads for each thread that calls it.
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="worker", initializer=partial(torch.set_num_threads, settings.threads)
        )

    def start(self, progress: Callable[[int, int], None], failed: Callable[[Exception], None]) -> None:
        # A worker in this process ends with it: no call of `failed`.
        self._worker.load(progress)

    def kv_layout(self) -> KVCacheConfig:
        return self._worker.kv_layout()

    def allocate_kv_cache(self, num_blocks: int, max_model_len: int) -> None:
        self._worker.allocate_kv_cache(num_blocks, max_model_len)

    def warm_up(self) -> None:
        self._worker.warm_up()

    def submit(self, step: StepInput) -> SubmittedStep:
        host = self._running()
        if self._launches:
            launched = host.launch(step)
            if step.masked:
                self._unsupplied[step.number] = launched
            return launched
        if step.masked and self.max_in_flight == 1:
            deferred = self._unsupplied[step.number] = _DeferredStep(host, step)
            return deferred
        if step.masked:
            masked = self._unsupplied[step.number] = _MaskedStep()
            masked.output = self._thread.submit(host.execute, step, masked.late.result)
            return masked
        if self.max_in_flight > 1:
            return self._thread.submit(host.execute, step)
        return _ComputedStep(host.execute(step))

    def supply(self, late: LateInput) -> None:
        self._unsupplied.pop(late.number).supply(late)

    def call(self, call: WorkerCall) -> list[WorkerResult]:
        host = self._running()
        if self.max_in_flight > 1 and not self._launches:
            return [self._thread.submit(host.answer, call).result()]
        return [host.answer(call)]

    def work_ahead(self) -> bool:
        return self._worker.work_ahead()

    def empty_pass(self) -> None:
        """Take part, without tokens, in a forward pass of the engines that share experts."""
        self._worker.empty_pass()

    def check_idle(self) -> None:
        self._worker.check_idle()

    def block_bytes(self) -> BlockBytes | None:
        return self._worker.block_bytes()

    def where(self) -> str:
        return ""

    def shutdown(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        for masked in self._unsupplied.values():
            if isinstance(masked, _MaskedStep):
                masked.late.cancel()  # ends the thread's wait
        self._unsupplied.clear()
        host, self._host = self._host, None
        if host is not None:
            host.worker.close()

    @property
    def _worker(self) -> Worker | PoolingWorker:
        return self._running().worker

    def _running(self) -> WorkerHost:
        assert self._host is not None, "the executor was shut down"
        return self._host
