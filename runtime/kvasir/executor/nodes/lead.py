"""Makes the leader of an engine on several nodes, with or without Ray."""

from collections.abc import Callable

from kvasir.config.executor_settings import RAY
from kvasir.config.settings import EngineConfig
from kvasir.executor.nodes.leader import Leader
from kvasir.executor.nodes.node_messages import NodeTerms
from kvasir.hub.model_info import ModelInfo


def lead(config: EngineConfig, model: ModelInfo, wait: Callable[[], None], drain: Callable[[], None]) -> Leader:
    """Return a leader that listens for members, started by Ray if that is chosen.

    It calls `wait` each second while one is missing, and `drain` when one is to end. Raises ConfigError, and
    FailureError if Ray has no room.
    """
    leader = Leader(config.nodes, config.link, NodeTerms.of(config, model))
    leader.waits, leader.drain = wait, drain
    if config.executor.distributed_executor_backend == RAY:
        from kvasir.executor.nodes.ray_nodes import RayNodes

        try:
            leader.waits = RayNodes(config, wait, lambda: leader.is_ending).check
        except BaseException:
            leader.close("Ray has not started the members")
            raise
    return leader
