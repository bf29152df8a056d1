"""Pods as the API server returns them, for tests of their state."""

from typing import Any

from kvasir_contract.failure import Failure
from kvasir_contract.reasons import Reason
from kvasir_operator.observe.objects import pod_of
from kvasir_operator.observe.observed import Object, PodState
from kvasir_operator.observe.pod_state import pod_state

GPU = "nvidia.com/gpu"
SCHEDULED = {"type": "PodScheduled", "status": "True"}


def pod(status: dict[str, Any], **metadata: Any) -> Object:
    return {
        "metadata": {
            "name": "demo-engine-0",
            "namespace": "default",
            "uid": "uid-1",
            "labels": {"app.kubernetes.io/component": "engine"},
            **metadata,
        },
        "spec": {"containers": [{"name": "engine", "image": "kvasir:1"}]},
        "status": status,
    }


def unscheduled(message: str) -> Object:
    return pod({"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]})


def has(state: dict[str, Any], *, ready: bool = False, **facts: Any) -> Object:
    conditions = [SCHEDULED, {"type": "Ready", "status": "True" if ready else "False"}]
    return pod({"conditions": conditions, "containerStatuses": [{"name": "engine", "state": state, **facts}]})


def waiting(reason: str, message: str = "", **facts: Any) -> Object:
    return has({"waiting": {"reason": reason, "message": message}}, **facts)


def ended(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def state_of(resource: Object, **facts: Any) -> PodState:
    return pod_state(pod_of(resource), resource_name=GPU, **facts)


RUNNING = has({"running": {}})
LINE = Failure(Reason.MODEL_NOT_FOUND, "/x does not exist").to_json()
CRASHED = ended(2, LINE + "\n")
