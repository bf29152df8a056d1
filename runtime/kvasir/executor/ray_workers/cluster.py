"""The connection to a Ray cluster. Importing this module needs Ray, and is slow."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from kvasir.config.options import ConfigError
from kvasir.process.failures import FailureError
from kvasir_contract.extras import install_extra
from kvasir_contract.failure import Failure
from kvasir_contract.reasons import Reason

try:
    import ray
    from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ModuleNotFoundError as error:
    raise ConfigError(
        f"--distributed-executor-backend ray: ray is not installed: {install_extra('ray')}"
    ) from error

__all__ = (
    "PlacementGroup",
    "connect",
    "own_bundle",
    "passed_variables",
    "place",
    "ray",
    "reason_of",
    "release",
    "strategy_of",
)

log = logging.getLogger(__name__)

_NODE: Final = "node:"
_HEAD: Final = "node:__internal_head__"
_SOME: Final = 0.001  # of a node's own resource: binds a bundle to the node
# Workers need the engine's: Ray starts processes with its own environment.
_PASSED_PREFIXES: Final = ("KVASIR_", "OMP_", "GOMP_", "KMP_", "MKL_", "TORCH_", "HF_")
_MAX_REASON: Final = 500
PLACE_SECONDS = 30.0  # another engine may still be ending


def connect() -> None:
    """Join this node's Ray, unless the program has done so. Raises ConfigError."""
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


def own_bundle() -> dict[str, float]:
    node_id = ray.get_runtime_context().get_node_id()
    resources = next(node["Resources"] for node in ray.nodes() if node["NodeID"] == node_id)
    return {next(name for name in resources if name.startswith(_NODE) and name != _HEAD): _SOME}


def place(bundles: list[dict[str, float]], strategy: str, what: str) -> PlacementGroup:
    """Return a placement group that has its resources. Raises FailureError."""
    group = placement_group(bundles, strategy=strategy)
    if not group.wait(PLACE_SECONDS):
        remove_placement_group(group)
        cpus = [f"{node['Resources'].get('CPU', 0):g}" for node in ray.nodes() if node["Alive"]]
        raise FailureError(
            Failure(
                Reason.UNSCHEDULABLE,
                f"Ray had no room for {what} with {bundles[0]['CPU']:g} free CPUs each within {PLACE_SECONDS:g} s; "
                f"its nodes have {', '.join(cpus)} CPUs in all: lower --threads or --tensor-parallel-size, or end "
                "what uses them (`ray status`)",
            )
        )
    log.info("Ray has placed %s with %g CPUs each", what, bundles[0]["CPU"])
    return group


def strategy_of(group: PlacementGroup, bundle: int) -> PlacementGroupSchedulingStrategy:
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)


def release(group: PlacementGroup) -> None:
    with suppress(Exception):  # Ray is gone
        remove_placement_group(group)


def reason_of(error: Exception) -> str:
    text = " ".join(str(error).split())
    detail = text.partition("Worker exit detail: ")[2].partition("Some common causes include")[0]
    return (detail or text)[:_MAX_REASON].rstrip(" .")


def passed_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_PASSED_PREFIXES)}


@contextmanager
def _own_signals() -> Iterator[None]:
    # ray.init replaces the handler of SIGTERM, which lets an engine drain.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
