"""Chooses the executor of an engine."""

from kvasir.config.resolve import ResolvedEngine
from kvasir.config.settings import ExecutorConfig
from kvasir.executor.executor import Executor
from kvasir.hub.model_info import ModelInfo


def has_worker_processes(config: ExecutorConfig) -> bool:
    """Return whether the workers run in processes of their own, so that the engine's process needs no torch."""
    return config.distributed_executor_backend == "mp" or config.num_workers > 1


def executor_for(settings: ResolvedEngine, model: ModelInfo) -> Executor:
    """Return an executor whose workers have not been started. Raises ConfigError.

    Only an executor in this process imports torch.
    """
    if has_worker_processes(settings.executor):
        from kvasir.executor.multiprocess import MultiprocessExecutor

        return MultiprocessExecutor(settings, model)
    from kvasir.executor.in_process import InProcessExecutor

    return InProcessExecutor(settings, model)
