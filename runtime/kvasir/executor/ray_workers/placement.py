"""The engine's connection to Ray, and the place of its workers: a placement group with a bundle for each.

All bundles are on the engine's node, because workers share memory with the engine. `import ray` is slow; this
module is imported only if Ray was chosen.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from kvasir.config.options import ConfigError
from kvasir.config.resolve import ResolvedEngine
from kvasir.executor.multiprocess import MultiprocessExecutor
from kvasir.executor.worker_messages import WorkerSetup
from kvasir.hub.model_info import ModelInfo
from kvasir.observability.failures import FailureError
from kvasir_contract.failure import Failure
from kvasir_contract.reasons import Reason

try:
    import ray
    from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ModuleNotFoundError as error:
    raise ConfigError(
        "--distributed-executor-backend ray: ray is not installed: pip install 'kvasir[ray]'"
    ) from error

from kvasir.executor.ray_workers.actor import PASSED_PREFIXES, RayWorkerActor
from kvasir.executor.ray_workers.placed_worker import PlacedWorker

log = logging.getLogger(__name__)

_NODE: Final = "node:"
_HEAD: Final = "node:__internal_head__"
_SOME: Final = 0.001
"""Of a node's own resource, which binds a bundle to the node."""
PLACE_SECONDS = 30.0
"""How long another engine that ends may still use the CPUs."""


def ray_executor(settings: ResolvedEngine, model: ModelInfo) -> MultiprocessExecutor:
    """Return an executor whose workers Ray starts. Raises ConfigError."""
    if settings.device != "cpu":
        raise ConfigError("--distributed-executor-backend ray is supported on CPUs only: give --device cpu, or mp")
    return MultiprocessExecutor(settings, model, start_worker=Placement(settings.executor.num_workers).start)


class Placement:
    """A placement group, made when its first worker is started and removed when its last one is closed."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._num_closed = 0
        self._lock = threading.Lock()
        self._group: PlacementGroup | None = None

    def start(self, setup: WorkerSetup, threads: int) -> PlacedWorker:
        """Raises ConfigError if there is no Ray, and FailureError if this node has too few CPUs that are free."""
        if self._group is None:
            _connect()
            self._group = _placed(self._num_workers, threads)
        return PlacedWorker(setup, self._starter(self._group, setup.rank, threads), self._one_closed)

    def _starter(self, group: PlacementGroup, rank: int, threads: int) -> Callable[[str], tuple[Any, Any]]:
        def start(address: str) -> tuple[Any, Any]:
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
            actor = (
                ray.remote(RayWorkerActor)
                .options(num_cpus=threads, max_restarts=0, max_task_retries=0, scheduling_strategy=strategy)
                .remote()
            )
            return actor, actor.run.remote(address, _environment(threads))

        return start

    def _one_closed(self) -> None:
        with self._lock:
            self._num_closed += 1
            if self._num_closed == self._num_workers and self._group is not None:
                with suppress(Exception):  # Ray is gone
                    remove_placement_group(self._group)
                self._group = None


def _connect() -> None:
    """Join the Ray that runs on this node, unless the program has done so. Raises ConfigError."""
    if ray.is_initialized():
        return
    with _own_signals():
        try:
            ray.init(address="auto", log_to_driver=False, configure_logging=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"--distributed-executor-backend ray: no Ray can be reached from this node ({error}); start one "
                "with `ray start --head`, or name it in RAY_ADDRESS"
            ) from error


def _placed(num_workers: int, threads: int) -> PlacementGroup:
    """Return a placement group on this node that has its resources. Raises FailureError."""
    node_id = ray.get_runtime_context().get_node_id()
    resources = next(node["Resources"] for node in ray.nodes() if node["NodeID"] == node_id)
    own = next(name for name in resources if name.startswith(_NODE) and name != _HEAD)
    group = placement_group([{"CPU": threads, own: _SOME} for _ in range(num_workers)], strategy="STRICT_PACK")
    if not group.wait(PLACE_SECONDS):
        remove_placement_group(group)
        raise FailureError(
            Failure(
                Reason.UNSCHEDULABLE,
                f"Ray had no {num_workers} × {threads} free CPUs on this node within {PLACE_SECONDS:g} s; the node "
                f"has {resources.get('CPU', 0):g} in all: lower --threads or --tensor-parallel-size, or end what "
                "uses them (`ray status`)",
            )
        )
    log.info("Ray has placed %d workers of %d CPUs on this node", num_workers, threads)
    return group


def _environment(threads: int) -> dict[str, str]:
    passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED_PREFIXES)}
    return passed | {"OMP_NUM_THREADS": str(threads)}


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's handlers: ray.init replaces the one of SIGTERM, which lets an engine drain."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
