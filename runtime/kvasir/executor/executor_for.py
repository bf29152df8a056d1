"""Chooses the executor of an engine."""

from kvasir.config.executor_settings import EXTERNAL_LAUNCHER, RAY, ExecutorConfig
from kvasir.config.resolve import ResolvedEngine
from kvasir.executor.executor import Executor
from kvasir.executor.remote_workers import RemoteWorkers
from kvasir.hub.model_info import ModelInfo


def has_worker_processes(config: ExecutorConfig) -> bool:
    backend = config.distributed_executor_backend
    return backend in ("mp", RAY) or (config.num_workers > 1 and backend != EXTERNAL_LAUNCHER)


def executor_for(settings: ResolvedEngine, model: ModelInfo, remote: RemoteWorkers | None = None) -> Executor:
    """Return an executor whose workers have not been started. Raises ConfigError.

    `remote`: workers of other nodes. Without a worker in this process, torch is not imported.
    """
    if settings.executor.distributed_executor_backend == EXTERNAL_LAUNCHER:
        from kvasir.executor.torchrun.external_launcher import ExternalLauncherExecutor

        return ExternalLauncherExecutor(settings, model)
    if settings.executor.distributed_executor_backend == RAY and remote is None:
        from kvasir.executor.ray_workers.placement import ray_executor

        return ray_executor(settings, model)
    if has_worker_processes(settings.executor):
        from kvasir.executor.multiprocess import MultiprocessExecutor

        return MultiprocessExecutor(settings, model, remote=remote)
    from kvasir.executor.in_process import InProcessExecutor

    return InProcessExecutor(settings, model)
