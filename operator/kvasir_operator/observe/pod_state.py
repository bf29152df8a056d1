"""Phase, reason and message of a pod, from its status and from what its process reports. Pure functions."""

from typing import Final

from kvasir_contract.exits import KILLED, ExitCode
from kvasir_contract.failure import Failure, cut, find_failure
from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_contract.status_report import ReportedProgress, StatusReport
from kvasir_operator.observe.observed import Container, Ended, Pod, PodState

MAX_MESSAGE_BYTES: Final = 1024
"""Longer messages are cut: the image is the user's, and a status with 1,024 ranks must fit into etcd."""

_PULL_FAILURES: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_WAITING: Final = {
    Phase.LOADING: Reason.LOADING,
    Phase.WARMING: Reason.WARMING,
    # The process is ready, and its readiness probe has not passed yet.
    Phase.READY: Reason.WARMING,
    Phase.DRAINING: Reason.ROLLING_OUT,
    Phase.FAILED: Reason.CRASH_LOOPING,
}


def pod_state(
    pod: Pod,
    *,
    resource_name: str = "",
    report: StatusReport | None = None,
    lost_node: str = "",
    mount_failure: str = "",
) -> PodState:
    """Return the state of a pod.

    `resource_name`: the extended resource that it requests, "" for none. `lost_node`: the problem of its node.
    `mount_failure`: why its volumes cannot be mounted.
    """

    def state(phase: Phase, reason: Reason, message: str = "", progress: str = "", ready: bool = False) -> PodState:
        text = cut(message, MAX_MESSAGE_BYTES)
        return PodState(pod.name, phase, reason, text, progress, ready, pod.container.restarts)

    if lost_node and not pod.ready:
        return state(Phase.FAILED, Reason.NODE_LOST, f"{lost_node}: the pod is replaced on another node")
    if pod.terminating:
        return state(Phase.DRAINING, Reason.ROLLING_OUT)
    if pod.ready:
        if report is not None and report.reason is not None:
            return state(Phase.READY, report.reason, report.message)
        return state(Phase.READY, Reason.AS_DESIRED, report.message if report else "", ready=True)
    if pod.has_ended:
        return state(Phase.FAILED, Reason.CRASH_LOOPING, pod.end_message or "the pod failed")
    if pod.scheduled is None:
        return state(Phase.SCHEDULING, Reason.LOADING)
    if pod.scheduled is False:
        refused = unscheduled(pod.schedule_message, resource_name)
        return state(Phase.SCHEDULING, refused.reason, refused.message)
    if pod.container.state == "running":
        return state(*_running(pod.container, report))
    if (problem := _ended_state(pod.container)) is not None:
        return state(Phase.FAILED, problem.reason, problem.message)
    if pod.container.state == "terminated":
        return state(Phase.STARTING, Reason.LOADING, "the container is being restarted")
    if (problem := waiting_failure(pod.container)) is not None:
        phase = Phase.PULLING if problem.reason is Reason.IMAGE_PULL_FAILED else Phase.STARTING
        return state(phase, problem.reason, problem.message)
    if mount_failure:
        return state(
            Phase.PULLING,
            Reason.VOLUME_FAILED,
            f"a volume cannot be mounted ({mount_failure}): create the missing object, or correct spec",
        )
    return state(Phase.PULLING, Reason.LOADING)


def unscheduled(message: str, resource_name: str) -> Failure:
    """Return why no node takes a pod, from the scheduler's message."""
    if resource_name and f"Insufficient {resource_name}" in message:
        return Failure(
            Reason.INSUFFICIENT_GPU,
            f"no node has a free {resource_name} ({message}): add nodes or free one, lower "
            "engine.dataParallelSize, or set another engine.resourceName",
        )
    return Failure(
        Reason.UNSCHEDULABLE,
        f"no node accepts the pod ({message}): compare pod.resources, nodeSelector, affinity and tolerations with "
        "the nodes",
    )


def waiting_failure(container: Container) -> Failure | None:
    """Return why a container cannot be started, or None if it is only not there yet."""
    why, message = container.waiting_reason, container.waiting_message
    if why in _PULL_FAILURES:
        detail = f" ({message})" if message else ""
        return Failure(
            Reason.IMAGE_PULL_FAILED,
            f"image {container.image} cannot be pulled{detail}: check spec.image, spec.imagePullSecrets and the "
            "registry",
        )
    if why == "CreateContainerConfigError":
        return Failure(Reason.INVALID_SPEC, f"{message}: create it, or change the field of spec that names it")
    if why in ("CreateContainerError", "RunContainerError"):
        return Failure(Reason.CRASH_LOOPING, f"the container cannot be started ({message})")
    return None


def ended_failure(ended: Ended | None) -> Failure | None:
    """Return why a container ended, or None if it ended well."""
    if ended is None or ended.code == ExitCode.OK:
        return None
    if ended.out_of_memory:
        return Failure(
            Reason.OUT_OF_MEMORY,
            "the container exceeded its memory limit and was killed: raise pod.resources.limits.memory, or lower "
            "engine.kvCache.memory, maxModelLen or maxNumSeqs",
        )
    if (failure := find_failure(ended.message)) is not None:
        return failure
    lines = ended.message.strip().splitlines()
    detail = lines[-1].strip() if lines else "see the pod's log"
    if ended.code == ExitCode.USER_ERROR:
        return Failure(Reason.INVALID_SPEC, detail)
    how = "was killed (SIGKILL)" if ended.code == KILLED else f"ended with exit code {ended.code}"
    return Failure(Reason.CRASH_LOOPING, f"the container {how}: {detail}")


def _ended_state(container: Container) -> Failure | None:
    """Why a container that does not run at the moment ended before."""
    if container.state == "terminated":
        return ended_failure(container.ended) or ended_failure(container.ended_before)
    return ended_failure(container.ended_before) if waiting_failure(container) is None else None


def _running(container: Container, report: StatusReport | None) -> tuple[Phase, Reason, str, str]:
    """A container that runs and is not ready."""
    if report is not None and report.reason is not None:
        return report.phase, report.reason, report.message, ""
    if report is not None and report.phase in _WAITING:
        return report.phase, _WAITING[report.phase], report.message, amount(report.progress)
    before = ended_failure(container.ended_before)
    if before is not None:
        # Between two crashes it runs for a moment, which changes nothing: the cause of the last one is what
        # matters.
        times = "once" if container.restarts == 1 else f"{container.restarts} times"
        return Phase.STARTING, before.reason, f"{before.message} (restarted {times})", ""
    return Phase.STARTING, Reason.LOADING, report.message if report else "", ""


def amount(progress: ReportedProgress | None) -> str:
    """As 3.1/15.0 GB; "" without progress."""
    if progress is None or progress.total <= 0:
        return ""
    unit, size = ("GB", 1e9) if progress.total >= 1e9 else ("MB", 1e6)
    return f"{progress.done / size:.1f}/{progress.total / size:.1f} {unit}"
