"""One worker in the engine's own process: no copies and no waiting between scheduler and model.

Without overlapped steps the engine's thread computes, and a step that was submitted is complete.
torch releases the GIL while it computes, so the engine's I/O thread runs meanwhile.
"""

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch

from kvasir.config.machine import cpu_use, openmp_variables
from kvasir.config.resolve import ResolvedEngine
from kvasir.executor.thread_count import ThreadCount
from kvasir.hub.model_info import ModelInfo
from kvasir.layers.kv import KVCacheConfig
from kvasir.worker.step import StepInput, StepOutput
from kvasir.worker.worker import Worker

log = logging.getLogger(__name__)


class InProcessExecutor:
    """An Executor."""

    def __init__(self, settings: ResolvedEngine, model: ModelInfo) -> None:
        self.max_in_flight = 2 if settings.async_scheduling else 1
        self._worker: Worker | None = Worker(settings, model)
        self._count = (
            ThreadCount(settings.threads, len(os.sched_getaffinity(0)), cpu_use) if settings.yield_threads else None
        )
        log.info(
            "threads: %d, %s%s",
            settings.threads,
            "fewer while other processes need the cores" if settings.yield_threads else "fixed",
            "".join(f", {name}={value}" for name, value in openmp_variables().items()),
        )
        self._overlaps = settings.async_scheduling
        """Whether steps run in a thread of their own, so that the caller can schedule meanwhile."""
        # Starts with the first step that is submitted. torch counts threads for each thread that calls it.
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="worker", initializer=partial(torch.set_num_threads, settings.threads)
        )

    def start(self, progress: Callable[[int, int], None], failed: Callable[[Exception], None]) -> None:
        """`failed` is not called: a worker in this process ends with the process."""
        self._running().load(progress)

    def kv_layout(self) -> KVCacheConfig:
        return self._running().kv_layout()

    def allocate_kv_cache(self, num_blocks: int, max_model_len: int) -> None:
        self._running().allocate_kv_cache(num_blocks, max_model_len)

    def warm_up(self) -> None:
        self._running().warm_up()

    def submit(self, step: StepInput) -> Future[StepOutput]:
        if self.max_in_flight > 1:
            return self._thread.submit(self._execute, self._running(), step)
        done: Future[StepOutput] = Future()
        done.set_result(self._execute(self._running(), step))
        return done

    def work_ahead(self) -> bool:
        return self._running().work_ahead()

    def check_idle(self) -> None:
        self._running().check_idle()

    def shutdown(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._worker = None

    def _execute(self, worker: Worker, step: StepInput) -> StepOutput:
        count = self._count
        if count is None:
            return worker.execute(step)
        count.begin_step()
        if torch.get_num_threads() != count.threads:
            torch.set_num_threads(count.threads)
        output = worker.execute(step)
        count.end_step()
        return output

    def _running(self) -> Worker:
        assert self._worker is not None, "the executor was shut down"
        return self._worker
