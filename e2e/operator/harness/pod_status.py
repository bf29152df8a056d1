"""Statuses of pods, as a kubelet or the scheduler writes them."""

from typing import Any

from kvasir_operator.cluster.cluster_client import Object


def ready(component: str, **more: Any) -> Object:
    """Return the status of a pod that serves."""
    return {
        "phase": "Running",
        "conditions": [_condition("PodScheduled", True), _condition("Ready", True)],
        "containerStatuses": [container(component, {"running": {}}, ready=True, **more)],
    }


def scheduled(component: str, state: Object, **more: Any) -> Object:
    """Return the status of a pod that is scheduled and not ready."""
    return {
        "phase": "Pending",
        "conditions": [_condition("PodScheduled", True), _condition("Ready", False)],
        "containerStatuses": [container(component, state, **more)],
    }


def starting(component: str, **more: Any) -> Object:
    """Return the status of a pod whose container runs and is not ready."""
    return {**scheduled(component, {"running": {}}, **more), "phase": "Running"}


def crash_looping(component: str, message: str = "it broke", restarts: int = 3) -> Object:
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": message}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    return scheduled(component, waiting, lastState=ended, restartCount=restarts)


def unschedulable(message: str, since: str | None = None) -> Object:
    """Return the status of a pod that fits on no node. `since` is a time in Kubernetes' format."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [{**condition, **({"lastTransitionTime": since} if since else {})}]}


def container(name: str, state: Object, *, ready: bool = False, **more: Any) -> Object:
    status = {"name": name, "image": "i", "imageID": "i", "ready": ready, "restartCount": 0, "state": state}
    return {**status, **more}


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any((entry["type"], entry["status"]) == ("Ready", "True") for entry in conditions)


def _condition(kind: str, status: bool) -> Object:
    return {"type": kind, "status": str(status)}
