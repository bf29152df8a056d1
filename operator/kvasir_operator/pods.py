"""What a pod's own status says about its way to serving: phase, progress, and the reason if something is wrong.

Pure functions for status.py and rollout.py. The pod is a dictionary as the API server gives it; what the engine
itself says on its ops port (engine_reports.py) is better while it runs, and used where it is there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from kvasir_operator import failure
from kvasir_operator.failure import Failure
from kvasir_operator.reasons import Reason

Pod = dict[str, Any]


LINK_REFUSED: Final = "LinkRefused: "
"""What an engine puts before its message when no frontend takes it."""


class Phase(StrEnum):
    SCHEDULING = "Scheduling"
    PULLING = "Pulling"
    STARTING = "Starting"
    LOADING = "Loading"
    WARMING = "Warming"
    READY = "Ready"
    DRAINING = "Draining"
    FAILED = "Failed"


@dataclass(frozen=True)
class EngineReport:
    """What an engine says about itself: GET /status."""

    phase: str
    progress: tuple[int, int] | None
    """Bytes: done, total."""
    message: str


@dataclass(frozen=True)
class PodState:
    pod: str
    phase: Phase
    reason: Reason
    message: str = ""
    progress: str = ""
    ready: bool = False


_BY_REPORT: Final[Mapping[str, tuple[Phase, Reason]]] = {
    "Starting": (Phase.STARTING, Reason.LOADING),
    "Loading": (Phase.LOADING, Reason.LOADING),
    "Warming": (Phase.WARMING, Reason.WARMING),
    "Ready": (Phase.WARMING, Reason.WARMING),  # so it says, but its readiness probe has not passed yet
    "Draining": (Phase.DRAINING, Reason.ROLLING_OUT),
    "Dead": (Phase.FAILED, Reason.CRASH_LOOPING),
}


def pod_state(
    pod: Pod,
    *,
    resource_name: str = "",
    report: EngineReport | None = None,
    lost_node: str | None = None,
) -> PodState:
    """`resource_name`: the GPU that it asks for; `lost_node`: what is wrong with its node."""
    name = pod["metadata"]["name"]
    if lost_node is not None and not is_ready(pod):
        message = f"{lost_node}: the pod is replaced on another node"
        return PodState(name, Phase.FAILED, Reason.NODE_LOST, message)
    if is_terminating(pod):
        return PodState(name, Phase.DRAINING, Reason.ROLLING_OUT)
    if is_ready(pod):
        said = report.message if report is not None else ""
        if said.startswith(LINK_REFUSED):
            return PodState(name, Phase.READY, Reason.LINK_REFUSED, said.removeprefix(LINK_REFUSED))
        return PodState(name, Phase.READY, Reason.AS_DESIRED, said, ready=True)
    status = pod.get("status", {})
    if status.get("phase") == "Failed":
        message = status.get("message") or status.get("reason") or "it failed"
        return PodState(name, Phase.FAILED, Reason.CRASH_LOOPING, message)
    return _unscheduled(pod, resource_name) or _starting(pod, report)


def is_ready(pod: Pod) -> bool:
    return _condition(pod, "Ready").get("status") == "True" and not is_terminating(pod)


def is_terminating(pod: Pod) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def container_runs(pod: Pod) -> bool:
    return "running" in _container(pod).get("state", {})


def is_owned_by(pod: Pod, uid: str) -> bool:
    """Whether the controller of the object is the one with this UID."""
    owners = pod["metadata"].get("ownerReferences", ())
    return any(owner.get("controller") and owner.get("uid") == uid for owner in owners)


def has_ended(pod: Pod) -> bool:
    """Evicted, or otherwise over; its controller makes another one."""
    return pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def ordinal(pod: Pod) -> int:
    """The rank of an engine's pod."""
    return int(pod["metadata"]["name"].rpartition("-")[2])


def _condition(pod: Pod, kind: str) -> Mapping[str, Any]:
    conditions = pod.get("status", {}).get("conditions", ())
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _container(pod: Pod) -> Mapping[str, Any]:
    """The status of our container: the first, because a pod has one unless something injects more."""
    ours = pod["spec"]["containers"][0]["name"]
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return next((status for status in statuses if status["name"] == ours), {})


def _unscheduled(pod: Pod, resource_name: str) -> PodState | None:
    name, scheduled = pod["metadata"]["name"], _condition(pod, "PodScheduled")
    if scheduled.get("status") == "True" or pod["spec"].get("nodeName"):
        return None
    if scheduled.get("status") != "False":
        return PodState(name, Phase.SCHEDULING, Reason.LOADING)
    message = scheduled.get("message", "")
    if resource_name and f"Insufficient {resource_name}" in message:
        return PodState(
            name,
            Phase.SCHEDULING,
            Reason.INSUFFICIENT_GPU,
            f"no node has a free {resource_name} ({message}): add nodes or free one, lower "
            "engine.dataParallelSize, or set another engine.resourceName",
        )
    return PodState(
        name,
        Phase.SCHEDULING,
        Reason.UNSCHEDULABLE,
        f"no node takes it ({message}): compare pod.resources, nodeSelector, affinity and "
        "tolerations with the nodes",
    )


def _starting(pod: Pod, report: EngineReport | None) -> PodState:
    """It has a node, and is not ready."""
    name, container = pod["metadata"]["name"], _container(pod)
    state = container.get("state", {})
    before = failure.of_terminated(container.get("lastState", {}).get("terminated", {}))
    if "running" in state:
        return _running(name, report, before, container.get("restartCount", 0))
    if "terminated" in state:
        ended = failure.of_terminated(state["terminated"]) or before
        return (
            _failed(name, ended) if ended else PodState(name, Phase.STARTING, Reason.LOADING, "it is started again")
        )
    waiting = state.get("waiting", {})
    problem = failure.of_waiting(waiting, pod["spec"]["containers"][0].get("image", ""))
    if problem is not None:
        phase = Phase.PULLING if problem.reason is Reason.IMAGE_PULL_FAILED else Phase.STARTING
        return PodState(name, phase, problem.reason, problem.message)
    if before is not None:
        return _failed(name, before)
    return PodState(name, Phase.PULLING, Reason.LOADING)


def _running(name: str, report: EngineReport | None, before: Failure | None, restarts: int) -> PodState:
    phase, reason = _BY_REPORT.get(report.phase if report else "", (Phase.STARTING, Reason.LOADING))
    message = report.message if report else ""
    if reason is Reason.LOADING and phase is Phase.STARTING and before is not None:
        # Between two crashes it runs for a moment: that is no news, the cause of the last one is.
        times = "once" if restarts == 1 else f"{restarts} times"
        return PodState(name, phase, before.reason, f"{before.message} (restarted {times})")
    return PodState(name, phase, reason, message, _amount(report.progress if report else None))


def _failed(name: str, problem: Failure) -> PodState:
    return PodState(name, Phase.FAILED, problem.reason, problem.message)


def _amount(progress: tuple[int, int] | None) -> str:
    """As 3.1/15.0 GB."""
    if progress is None or progress[1] <= 0:
        return ""
    unit, size = ("GB", 1e9) if progress[1] >= 1e9 else ("MB", 1e6)
    return f"{progress[0] / size:.1f}/{progress[1] / size:.1f} {unit}"
