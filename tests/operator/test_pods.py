"""A pod's phase, reason and message, from its status and from what the engine in it says."""

from typing import Any

import pytest

from kvasir_operator.pods import EngineReport, Phase, Pod, pod_state
from kvasir_operator.reasons import Reason

SCHEDULED = {"type": "PodScheduled", "status": "True"}
UNREADY = {"type": "Ready", "status": "False"}


def pod(status: dict[str, Any], **metadata: Any) -> Pod:
    containers = [{"name": "engine", "image": "kvasir:1"}]
    return {"metadata": {"name": "demo-engine-0", **metadata}, "spec": {"containers": containers}, "status": status}


def waits(message: str) -> Pod:
    return pod({"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]})


def has(state: dict[str, Any], ready: bool = False, **more: Any) -> Pod:
    conditions = [SCHEDULED, {"type": "Ready", "status": "True" if ready else "False"}]
    return pod({"conditions": conditions, "containerStatuses": [{"name": "engine", "state": state, **more}]})


RUNNING = has({"running": {}})
CRASHED = {"terminated": {"exitCode": 2, "message": "kvasir engine: model not found: /x does not exist"}}

FROM_THE_POD: dict[str, tuple[Pod, Phase, Reason, str]] = {
    "just made": (pod({}), Phase.SCHEDULING, Reason.LOADING, ""),
    "no node": (
        waits("0/3 nodes match"),
        Phase.SCHEDULING,
        Reason.UNSCHEDULABLE,
        "no node takes it (0/3 nodes match)",
    ),
    "no GPU": (
        waits("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
        Phase.SCHEDULING,
        Reason.INSUFFICIENT_GPU,
        "no node has a free nvidia.com/gpu",
    ),
    "no CPU": (waits("3 Insufficient cpu."), Phase.SCHEDULING, Reason.UNSCHEDULABLE, "no node takes it"),
    "has a node": (pod({"conditions": [SCHEDULED]}), Phase.PULLING, Reason.LOADING, ""),
    "image comes": (has({"waiting": {"reason": "ContainerCreating"}}), Phase.PULLING, Reason.LOADING, ""),
    "no image": (
        has({"waiting": {"reason": "ImagePullBackOff"}}),
        Phase.PULLING,
        Reason.IMAGE_PULL_FAILED,
        "image kvasir:1 cannot be pulled",
    ),
    "no Secret": (
        has({"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "t" not found'}}),
        Phase.STARTING,
        Reason.INVALID_SPEC,
        'secret "t" not found: create it',
    ),
    "started": (RUNNING, Phase.STARTING, Reason.LOADING, ""),
    "crashed": (has(CRASHED), Phase.FAILED, Reason.MODEL_NOT_FOUND, "/x does not exist"),
    "in back-off": (
        has({"waiting": {"reason": "CrashLoopBackOff"}}, lastState=CRASHED),
        Phase.FAILED,
        Reason.MODEL_NOT_FOUND,
        "/x does not exist",
    ),
    "between two crashes": (
        has({"running": {}}, lastState=CRASHED, restartCount=3),
        Phase.STARTING,
        Reason.MODEL_NOT_FOUND,
        "/x does not exist (restarted 3 times)",
    ),
    "evicted": (
        pod({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory"}),
        Phase.FAILED,
        Reason.CRASH_LOOPING,
        "The node was low on memory",
    ),
    "told to end": (
        pod({"conditions": [SCHEDULED, UNREADY]}, deletionTimestamp="2026-11-21T07:00:00Z"),
        Phase.DRAINING,
        Reason.ROLLING_OUT,
        "",
    ),
    "serving": (has({"running": {}}, ready=True), Phase.READY, Reason.AS_DESIRED, ""),
}


@pytest.mark.parametrize("case", FROM_THE_POD)
def test_what_the_pod_says(case: str) -> None:
    given, phase, reason, words = FROM_THE_POD[case]
    found = pod_state(given, resource_name="nvidia.com/gpu")
    assert (found.phase, found.reason) == (phase, reason)
    assert found.message.startswith(words)
    assert bool(found.message) == bool(words)
    assert found.ready is (case == "serving")


@pytest.mark.parametrize(
    ("said", "phase", "reason", "progress"),
    [
        (EngineReport("Starting", None, ""), Phase.STARTING, Reason.LOADING, ""),
        (
            EngineReport("Loading", (3_100_000_000, 15_000_000_000), ""),
            Phase.LOADING,
            Reason.LOADING,
            "3.1/15.0 GB",
        ),
        (EngineReport("Loading", (100_000, 2_500_000), ""), Phase.LOADING, Reason.LOADING, "0.1/2.5 MB"),
        (EngineReport("Warming", None, ""), Phase.WARMING, Reason.WARMING, ""),
        (EngineReport("Ready", None, ""), Phase.WARMING, Reason.WARMING, ""),
        (EngineReport("Draining", None, ""), Phase.DRAINING, Reason.ROLLING_OUT, ""),
        (EngineReport("Dead", None, "out of luck"), Phase.FAILED, Reason.CRASH_LOOPING, ""),
        (EngineReport("Dreaming", None, ""), Phase.STARTING, Reason.LOADING, ""),
    ],
)
def test_what_the_engine_says_while_it_is_not_ready(
    said: EngineReport, phase: Phase, reason: Reason, progress: str
) -> None:
    found = pod_state(RUNNING, report=said)
    assert (found.phase, found.reason, found.progress, found.message) == (phase, reason, progress, said.message)


def test_a_ready_engine_that_no_frontend_takes_does_not_serve() -> None:
    report = EngineReport("Ready", None, "LinkRefused: another tokenizer")
    found = pod_state(has({"running": {}}, ready=True), report=report)
    assert (found.phase, found.reason, found.ready) == (Phase.READY, Reason.LINK_REFUSED, False)
    assert found.message == "another tokenizer"


def test_an_engine_that_loads_again_after_a_crash_is_loading() -> None:
    restarted = has({"running": {}}, lastState=CRASHED, restartCount=1)
    found = pod_state(restarted, report=EngineReport("Loading", (1, 10**9), ""))
    assert (found.phase, found.reason) == (Phase.LOADING, Reason.LOADING)


@pytest.mark.parametrize("leaving", [{}, {"deletionTimestamp": "2026-11-21T07:00:00Z"}])
def test_a_pod_of_a_lost_node_has_failed_whether_or_not_it_is_told_to_end(leaving: dict[str, str]) -> None:
    found = pod_state(pod(RUNNING["status"], **leaving), lost_node="node n1 is not ready (Kubelet stopped)")
    assert (found.phase, found.reason) == (Phase.FAILED, Reason.NODE_LOST)
    assert "node n1 is not ready" in found.message
