"""Pure functions for the phase, reason and message of a pod, from its status and its report."""

from typing import Final

from kvasir_contract.exits import KILLED, ExitCode
from kvasir_contract.failure import Failure, cut, find_failure
from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_contract.status_report import ReportedProgress, StatusReport
from kvasir_operator.observe.added_containers import PULL_FAILURES, added_failure, awaited_container
from kvasir_operator.observe.observed import Container, Ended, Pod, PodState
from kvasir_operator.observe.scheduling import unscheduled

MAX_MESSAGE_BYTES: Final = 1024  # a status with 1,024 ranks must fit into etcd

_WAITING: Final = {
    Phase.LOADING: Reason.LOADING,
    Phase.WARMING: Reason.WARMING,
    # The process is ready, but its readiness probe has not passed yet.
    Phase.READY: Reason.WARMING,
    Phase.DRAINING: Reason.ROLLING_OUT,
    Phase.FAILED: Reason.CRASH_LOOPING,
}


def pod_state(
    pod: Pod,
    *,
    resource_name: str = "",
    amount_of_resource: int = 1,
    report: StatusReport | None = None,
    lost_node: str = "",
    mount_failure: str = "",
    scale_up: str = "",
) -> PodState:
    """Return the state of a pod that requests `amount_of_resource` of an extended resource ("" for none).

    The texts are problems of its node and its volumes, and an autoscaler's message that it adds a node; "" for
    none.
    """
    if lost_node and not pod.ready:
        return _state(pod, Phase.FAILED, Reason.NODE_LOST, f"{lost_node}: a replacement starts on another node")
    if pod.terminating:
        return _state(pod, Phase.DRAINING, Reason.ROLLING_OUT)
    if pod.ready:
        if report is not None and report.reason is not None:
            return _state(pod, Phase.READY, report.reason, report.message)
        return _state(pod, Phase.READY, Reason.AS_DESIRED, report.message if report else "", ready=True)
    if pod.has_ended:
        return _state(pod, Phase.FAILED, Reason.CRASH_LOOPING, pod.end_message or "the pod failed")
    if pod.gates and not pod.node:
        waits = f"the pod is queued until its scheduling gates are removed: {', '.join(pod.gates)}"
        return _state(pod, Phase.SCHEDULING, Reason.QUEUED, waits)
    if pod.scheduled is None:
        return _state(pod, Phase.SCHEDULING, Reason.LOADING)
    if pod.scheduled is False:
        if scale_up:
            coming = f"a node is being added for the pod ({scale_up})"
            return _state(pod, Phase.SCHEDULING, Reason.WAITING_FOR_NODE, coming)
        where = "frontend" if pod.component == "frontend" else "engine"  # whose fields place a cache's Job too
        refused = unscheduled(pod.schedule_message, resource_name, amount_of_resource, where)
        return _state(pod, Phase.SCHEDULING, refused.reason, refused.message)
    phase, reason, message, progress = _container_state(pod.current, report, mount_failure)
    if not reason.is_failure:
        if (problem := added_failure(pod)) is not None:
            return _state(pod, Phase.FAILED, problem.reason, problem.message)
        message = message or _fetching(pod) or awaited_container(pod)
    return _state(pod, phase, reason, message, progress)


def _fetching(pod: Pod) -> str:
    is_running = pod.current is pod.fetch and pod.current.state == "running"
    return "config and tokenizer are being fetched" if is_running else ""


def _state(
    pod: Pod, phase: Phase, reason: Reason, message: str = "", progress: str = "", ready: bool = False
) -> PodState:
    text = cut(message, MAX_MESSAGE_BYTES)
    return PodState(pod.name, phase, reason, text, progress, ready, pod.restarts)


def _container_state(
    container: Container, report: StatusReport | None, mount_failure: str
) -> tuple[Phase, Reason, str, str]:
    """Return phase, reason, message and progress of a scheduled pod that is not ready."""
    if container.state == "running":
        return _running(container, report)
    if (problem := _ended_state(container)) is not None:
        return Phase.FAILED, problem.reason, problem.message, ""
    if container.state == "terminated":
        return Phase.STARTING, Reason.LOADING, "the container is being restarted", ""
    if (problem := waiting_failure(container)) is not None:
        phase = Phase.PULLING if problem.reason is Reason.IMAGE_PULL_FAILED else Phase.STARTING
        return phase, problem.reason, problem.message, ""
    if mount_failure:
        message = f"a volume cannot be mounted ({mount_failure}): create the missing object, or correct spec"
        return Phase.PULLING, Reason.VOLUME_FAILED, message, ""
    return Phase.PULLING, Reason.LOADING, "", ""


def waiting_failure(container: Container) -> Failure | None:
    """Return why a container cannot be started; None if it may still start."""
    why, message = container.waiting_reason, container.waiting_message
    if why in PULL_FAILURES:
        detail = f" ({message})" if message else ""
        return Failure(
            Reason.IMAGE_PULL_FAILED,
            f"image {container.image} cannot be pulled{detail}: check spec.image, spec.imagePullSecrets and the "
            "registry",
        )
    if why == "CreateContainerConfigError":
        return Failure(Reason.INVALID_SPEC, f"{message}: create it, or change the field of spec that refers to it")
    if why in ("CreateContainerError", "RunContainerError"):
        return Failure(Reason.CRASH_LOOPING, f"the container cannot be started ({message})")
    return None


def ended_failure(ended: Ended | None) -> Failure | None:
    """Return why a container failed; None if it exited with code 0."""
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
    if container.state == "terminated":
        return ended_failure(container.ended) or ended_failure(container.ended_before)
    return ended_failure(container.ended_before) if waiting_failure(container) is None else None


def _running(container: Container, report: StatusReport | None) -> tuple[Phase, Reason, str, str]:
    if report is not None and report.reason is not None:
        return report.phase, report.reason, report.message, ""
    if report is not None and report.phase in _WAITING:
        return report.phase, _WAITING[report.phase], report.message, amount(report.progress)
    before = ended_failure(container.ended_before)
    if before is not None:
        # Between two crashes the container runs for a moment. The cause of the last crash remains the problem.
        times = "once" if container.restarts == 1 else f"{container.restarts} times"
        return Phase.STARTING, before.reason, f"{before.message} (restarted {times})", ""
    return Phase.STARTING, Reason.LOADING, report.message if report else "", ""


def amount(progress: ReportedProgress | None) -> str:
    if progress is None or progress.total <= 0:
        return ""
    unit, size = ("GB", 1e9) if progress.total >= 1e9 else ("MB", 1e6)
    return f"{progress.done / size:.1f}/{progress.total / size:.1f} {unit}"
