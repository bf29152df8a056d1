import logging
import threading
from collections.abc import Iterator
from importlib import import_module
from unittest.mock import MagicMock

import pytest

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.nodes import NodesConfig
from kvasir.config.settings import EngineConfig, ModelConfig
from kvasir.process.failures import FailureError
from runtime.executor.ray_stand_in import ray_stand_in

CLUSTER = "kvasir.executor.ray_workers.cluster"
NODES = "kvasir.executor.nodes.ray_nodes"
WAIT = 60.0
CONFIG = EngineConfig(
    model=ModelConfig("demo://"),
    executor=ExecutorConfig(tensor_parallel_size=2, distributed_executor_backend="ray"),
    nodes=NodesConfig(nnodes=2, master_addr="127.0.0.1", master_port=29500),
)


@pytest.fixture
def ray_of_members_that_fail(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each member ends at once with exit code 1."""
    content = {"remote": MagicMock(), "wait": lambda runs: (runs[:1], runs[1:]), "get": lambda run: 1}
    with ray_stand_in(monkeypatch, content, CLUSTER, NODES):
        module = import_module(NODES)
        for name in ("connect", "own_bundle", "place", "strategy_of"):
            monkeypatch.setattr(module, name, MagicMock(return_value={}))
        yield


@pytest.mark.parametrize("is_ending", [False, True])
def test_end_of_a_member_is_a_failure_unless_requested(
    is_ending: bool, ray_of_members_that_fail: None, caplog: pytest.LogCaptureFixture
) -> None:
    from kvasir.executor.nodes.ray_nodes import RayNodes

    nodes = RayNodes(CONFIG, lambda: None, lambda: is_ending)
    for thread in threading.enumerate():
        if thread.name == "nodes of Ray":
            thread.join(WAIT)
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    if is_ending:
        nodes.check()
        assert errors == []
    else:
        assert errors == ["node 1 ended with exit code 1: see its log (`ray logs`)"]
        with pytest.raises(FailureError, match="node 1 ended with exit code 1"):
            nodes.check()
