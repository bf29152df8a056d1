"""The place of an engine's workers in a Ray cluster: a bundle for each."""

import threading
from collections.abc import Callable
from typing import Any

from kvasir.config.options import ConfigError
from kvasir.config.resolve import ResolvedEngine
from kvasir.executor.multiprocess import MultiprocessExecutor
from kvasir.executor.processes.worker_messages import WorkerSetup
from kvasir.executor.ray_workers.cluster import (
    PlacementGroup,
    connect,
    own_bundle,
    passed_variables,
    place,
    ray,
    release,
    strategy_of,
)
from kvasir.executor.ray_workers.placed_worker import PlacedWorker
from kvasir.executor.ray_workers.worker_actor import RayWorkerActor
from kvasir.hub.model_info import ModelInfo


def ray_executor(settings: ResolvedEngine, model: ModelInfo) -> MultiprocessExecutor:
    if settings.device != "cpu":
        raise ConfigError("--distributed-executor-backend ray is supported on CPUs only: give --device cpu, or mp")
    return MultiprocessExecutor(settings, model, start_worker=RayPlacement(settings.executor.num_workers).start)


class RayPlacement:
    """A placement group on this node, from its first worker's start to the last one's end."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._num_closed = 0
        self._lock = threading.Lock()
        self._group: PlacementGroup | None = None

    def start(self, setup: WorkerSetup, threads: int) -> PlacedWorker:
        """Raises ConfigError without Ray, and FailureError without free CPUs."""
        if self._group is None:
            connect()
            bundle = {"CPU": float(threads)} | own_bundle()
            workers = f"{self._num_workers} workers on the engine's node"
            self._group = place([bundle] * self._num_workers, "STRICT_PACK", workers)
        return PlacedWorker(setup, self._starter(self._group, setup.rank, threads), self._one_closed)

    def _starter(self, group: PlacementGroup, rank: int, threads: int) -> Callable[[str], tuple[Any, Any]]:
        def start(address: str) -> tuple[Any, Any]:
            actor = (
                ray.remote(RayWorkerActor)
                .options(
                    num_cpus=threads,
                    max_restarts=0,
                    max_task_retries=0,
                    scheduling_strategy=strategy_of(group, rank),
                )
                .remote()
            )
            return actor, actor.run.remote(address, passed_variables() | {"OMP_NUM_THREADS": str(threads)})

        return start

    def _one_closed(self) -> None:
        with self._lock:
            self._num_closed += 1
            if self._num_closed == self._num_workers and self._group is not None:
                release(self._group)
                self._group = None
