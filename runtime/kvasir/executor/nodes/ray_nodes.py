"""The other nodes of an engine, started by Ray: each actor is a member.

Ray ends the actors with the engine's process.
"""

import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from kvasir.config.settings import EngineConfig
from kvasir.executor.nodes.member_process import run_member
from kvasir.executor.ray_workers.cluster import (
    PlacementGroup,
    connect,
    own_bundle,
    passed_variables,
    place,
    ray,
    reason_of,
    strategy_of,
)
from kvasir.process.failures import FailureError
from kvasir_contract.failure import Failure
from kvasir_contract.reasons import Reason

log = logging.getLogger(__name__)


class RayNodeActor:
    """One call, which lasts as long as the member."""

    def run(self, config: bytes, environment: Mapping[str, str]) -> int:
        os.environ.update(environment)  # before torch is imported
        return run_member(msgspec.json.decode(config, type=EngineConfig))


class RayNodes:
    def __init__(self, config: EngineConfig, wait: Callable[[], None], is_ending: Callable[[], bool]) -> None:
        """`is_ending` returns whether the members were asked to end. Raises ConfigError and FailureError."""
        self._wait = wait
        self._is_ending = is_ending
        self._failure: Failure | None = None
        connect()
        nodes = config.nodes.nnodes
        workers = config.executor.num_workers // nodes
        cpus = config.device.threads or workers
        bundle = {"CPU": float(cpus)}
        group = place([bundle | own_bundle(), *[bundle] * (nodes - 1)], "STRICT_SPREAD", f"{nodes} nodes")
        self._runs = [self._start(config, group, node, cpus) for node in range(1, nodes)]
        threading.Thread(target=self._watch, name="nodes of Ray", daemon=True).start()

    def check(self) -> None:
        """Raises FailureError if a member has ended."""
        if self._failure is not None:
            raise FailureError(self._failure)
        self._wait()

    def _start(self, config: EngineConfig, group: PlacementGroup, node: int, cpus: int) -> Any:
        config = dataclasses.replace(
            config,
            nodes=dataclasses.replace(config.nodes, node_rank=node),
            ops=dataclasses.replace(config.ops, ops_port=0),  # the machine may have another member
        )
        actor = (
            ray.remote(RayNodeActor)
            .options(
                num_cpus=cpus, max_restarts=0, max_task_retries=0, scheduling_strategy=strategy_of(group, node)
            )
            .remote()
        )
        return actor.run.remote(msgspec.json.encode(config), passed_variables())

    def _watch(self) -> None:
        """Log Ray's reason for the first member that ends."""
        [run, *_], _ = ray.wait(self._runs)
        node = self._runs.index(run) + 1
        try:
            code = ray.get(run)
            if self._is_ending():
                log.debug("node %d ended with exit code %d", node, code)
                return
            text = f"node {node} ended with exit code {code}: see its log (`ray logs`)"
        except Exception as error:
            text = f"node {node} ended (Ray: {reason_of(error)})"
        log.error("%s", text)
        self._failure = Failure(Reason.CRASH_LOOPING, text)
