"""Runs one worker: its steps, with the right number of threads, and its calls."""

import logging
import os
from collections.abc import Callable
from typing import Any

import torch

from kvasir.config.entry_points import EXTENSIONS, WORKERS, plugin
from kvasir.config.hardware.machine import cpu_use, openmp_variables
from kvasir.config.resolve import ResolvedEngine
from kvasir.executor.thread_count import ThreadCount
from kvasir.hub.model_info import ModelInfo
from kvasir.parallel.parallel_state import SINGLE, ParallelState
from kvasir.worker.launch.launched_step import LaunchedStep
from kvasir.worker.pooling_worker import PoolingWorker
from kvasir.worker.profiler import Profiler
from kvasir.worker.step import AwaitLateInput, StepInput, StepOutput
from kvasir.worker.worker import Worker
from kvasir.worker.worker_calls import WorkerCall, WorkerCalls, WorkerResult, calls_of

log = logging.getLogger(__name__)


class WorkerHost:
    def __init__(self, settings: ResolvedEngine, model: ModelInfo, parallel: ParallelState = SINGLE) -> None:
        executor = settings.executor
        make: Callable[[ResolvedEngine, ModelInfo, ParallelState], Worker | PoolingWorker]
        make = Worker if model.pooling is None else PoolingWorker
        if executor.worker_cls is not None:
            make = plugin(WORKERS, executor.worker_cls, "worker_cls")
        self.worker = make(settings, model, parallel)
        extensions = []
        if executor.worker_extension_cls is not None:
            extensions = [plugin(EXTENSIONS, executor.worker_extension_cls, "worker_extension_cls")(self.worker)]
        rank = "-".join(map(str, (settings.data_parallel_rank, parallel.pipeline.rank, parallel.tensor.rank)))
        self._profiler = Profiler(settings.profiler, torch.device(settings.device).type, f"rank{rank}")
        owners = [self.worker, self._profiler, *extensions]
        if (adapters := getattr(self.worker, "adapters", None)) is not None:
            owners.append(adapters)
        self._calls = WorkerCalls(*owners, of_engine=calls_of(Worker))
        self._count = (
            ThreadCount(settings.threads, len(os.sched_getaffinity(0)), cpu_use) if settings.yield_threads else None
        )
        log.info(
            "threads: %d, %s%s",
            settings.threads,
            "fewer while other processes need the cores" if settings.yield_threads else "fixed",
            "".join(f", {name}={value}" for name, value in openmp_variables().items()),
        )

    @property
    def launches(self) -> bool:
        # Another package's worker class may have its own `execute`.
        return type(self.worker).execute is Worker.execute

    def execute(self, step: StepInput, late: AwaitLateInput | None = None) -> StepOutput:
        # `late`: for a step with masked rows
        count = self._count
        if count is None:
            output = self._execute(step, late)
        else:
            count.begin_step()
            if torch.get_num_threads() != count.threads:
                torch.set_num_threads(count.threads)
            output = self._execute(step, late)
            count.end_step()
        self._profiler.after_step()
        return output

    def launch(self, step: StepInput) -> LaunchedStep:
        launched = self.worker.launch(step)
        self._profiler.after_step()
        return launched

    def _execute(self, step: StepInput, late: AwaitLateInput | None) -> StepOutput:
        # Another package's worker class may not support masked rows.
        return self.worker.execute(step) if late is None else self.worker.execute(step, late)

    def run(self, call: WorkerCall) -> Any:
        """Run a call that the engine needs. Raises the method's errors."""
        return self._calls.run(call)

    def answer(self, call: WorkerCall) -> WorkerResult:
        """Run a user's call, which Kvasir's own worker does not have."""
        return self._calls.answer(call)
