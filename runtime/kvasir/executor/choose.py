"""Chooses the executor of an engine."""

from kvasir.config.resolve import ResolvedEngine
from kvasir.executor.executor import Executor
from kvasir.hub.model_info import ModelInfo


def executor_for(settings: ResolvedEngine, model: ModelInfo) -> Executor:
    """Return an executor whose workers have not been started. Raises ConfigError."""
    from kvasir.executor.in_process import InProcessExecutor

    return InProcessExecutor(settings, model)
