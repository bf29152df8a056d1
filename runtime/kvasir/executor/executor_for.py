"""Chooses the executor of an engine."""

from kvasir.config.resolve import ResolvedEngine
from kvasir.executor.executor import Executor
from kvasir.hub.model_info import ModelInfo


def executor_for(settings: ResolvedEngine, model: ModelInfo) -> Executor:
    """Return an executor whose workers have not been started. Raises ConfigError.

    Only an executor in this process imports torch.
    """
    executor = settings.executor
    if executor.distributed_executor_backend == "mp" or executor.num_workers > 1:
        from kvasir.executor.multiprocess import MultiprocessExecutor

        return MultiprocessExecutor(settings, model)
    from kvasir.executor.in_process import InProcessExecutor

    return InProcessExecutor(settings, model)
