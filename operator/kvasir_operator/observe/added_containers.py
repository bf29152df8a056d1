"""Containers that webhooks and policies have added to a pod, and which keep it from becoming ready."""

from typing import Final

from kvasir_contract.failure import Failure
from kvasir_contract.reasons import Reason
from kvasir_operator.observe.observed import Container, Ended, Pod

PULL_FAILURES: Final = frozenset(
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


def added_failure(pod: Pod) -> Failure | None:
    failures = (_failure(pod, container) for container in (*pod.init_containers, *pod.sidecars))
    return next((failure for failure in failures if failure is not None), None)


def awaited_container(pod: Pod) -> str:
    """Return which container ours, or the pod's readiness, waits for; "" if none."""
    if pod.container.state in ("", "waiting"):
        running = [each for each in pod.init_containers if each.state == "running" and not each.ready]
        return f"waits for the init container {running[0].name}" if running else ""
    unready = [each for each in (*pod.init_containers, *pod.sidecars) if each.state == "running" and not each.ready]
    return f"waits for the container {unready[0].name} to become ready" if unready and pod.container.ready else ""


def _failure(pod: Pod, container: Container) -> Failure | None:
    who, detail = f"container {container.name}, which was added to the pod,", container.waiting_message
    logs = f"see kubectl logs {pod.name} -c {container.name}, and what adds it to the pod"
    if container.ready:
        return None
    if container.waiting_reason in PULL_FAILURES:
        why = f" ({detail})" if detail else ""
        return Failure(
            Reason.IMAGE_PULL_FAILED, f"{who} waits for its image {container.image}, which cannot be pulled{why}"
        )
    if container.waiting_reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
        return Failure(Reason.CRASH_LOOPING, f"{who} cannot be started ({detail})")
    ended = container.ended or container.ended_before
    if ended is None or (ended.code == 0 and container.waiting_reason != "CrashLoopBackOff"):
        return None
    return Failure(Reason.CRASH_LOOPING, f"{who} {_how(ended)}: {logs}")


def _how(ended: Ended) -> str:
    lines = ended.message.strip().splitlines()
    last = f" ({lines[-1].strip()})" if lines else ""
    how = "exceeded its memory limit" if ended.out_of_memory else f"ended with exit code {ended.code}"
    return how + last
