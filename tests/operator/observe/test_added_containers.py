from typing import Any

import pytest

from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_operator.observe.observed import Object, PodState
from pod_facts import CRASHED, SCHEDULED, ended, pod, state_of

BACKOFF = {"waiting": {"reason": "CrashLoopBackOff"}}
CRASH = {"state": BACKOFF, "lastState": ended(1, "no route\n"), "restartCount": 3}
OURS_WAITS = {"state": {"waiting": {"reason": "PodInitializing"}}}
OURS_RUNS: dict[str, Any] = {"state": {"running": {}}}
PULL = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "denied"}}}


def state(
    ours: dict[str, Any], *, init: dict[str, Any] | None = None, sidecar: dict[str, Any] | None = None
) -> PodState:
    resource: Object = pod({"conditions": [SCHEDULED, {"type": "Ready", "status": "False"}]})
    spec, status = resource["spec"], resource["status"]
    status["containerStatuses"] = [{"name": "engine", **ours}]
    if sidecar is not None:
        spec["containers"].insert(0, {"name": "proxy", "image": "proxy:1"})
        status["containerStatuses"].insert(0, {"name": "proxy", **sidecar})
    if init is not None:
        spec["initContainers"] = [{"name": "setup", "image": "setup:1"}]
        status["initContainerStatuses"] = [{"name": "setup", **init}]
    return state_of(resource)


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (CRASH, Reason.CRASH_LOOPING, "ended with exit code 1 (no route): see kubectl logs demo-engine-0 -c"),
        ({"state": ended(1, "no route")}, Reason.CRASH_LOOPING, "ended with exit code 1"),
        ({"state": {"running": {}}, "lastState": ended(3), "restartCount": 1}, Reason.CRASH_LOOPING, "exit code 3"),
        ({"state": ended(137, "", "OOMKilled")}, Reason.CRASH_LOOPING, "exceeded its memory limit"),
        (PULL, Reason.IMAGE_PULL_FAILED, "image {image}, which cannot be pulled (denied)"),
        (
            {"state": {"waiting": {"reason": "CreateContainerConfigError", "message": "no secret"}}},
            Reason.CRASH_LOOPING,
            "cannot be started (no secret)",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["init", "sidecar"])
def test_an_added_container_that_fails_is_named(
    kind: str, status: dict[str, Any], reason: Reason, words: str
) -> None:
    name = {"init": "setup", "sidecar": "proxy"}[kind]
    found = state(OURS_WAITS, init=status) if kind == "init" else state(OURS_RUNS, sidecar=status)
    assert (found.phase, found.reason) == (Phase.FAILED, reason)
    assert found.message.startswith(f"container {name}, which was added to the pod,")
    assert words.format(image=f"{name}:1") in found.message


@pytest.mark.parametrize("ours", [{"state": CRASHED}, PULL])
def test_our_own_failure_comes_before_an_added_one(ours: dict[str, Any]) -> None:
    assert "proxy" not in state(ours, sidecar=CRASH).message


@pytest.mark.parametrize(
    "status",
    [
        {"state": ended(0, reason="Completed"), "ready": True},
        {"state": {"running": {}}, "ready": True, "lastState": ended(1), "restartCount": 2},
        {"state": {"waiting": {"reason": "PodInitializing"}}},
    ],
)
def test_an_added_container_that_works_is_not_mentioned(status: dict[str, Any]) -> None:
    for found in (state(OURS_RUNS, init=status), state(OURS_RUNS, sidecar=status)):
        assert (found.phase, found.reason, found.message) == (Phase.STARTING, Reason.LOADING, "")


def test_a_sidecar_that_ends_well_again_and_again_fails() -> None:
    waiting = {"state": BACKOFF, "lastState": ended(0), "restartCount": 4}
    assert state(OURS_RUNS, sidecar=waiting).reason is Reason.CRASH_LOOPING


def test_the_awaited_container_is_named() -> None:
    running = {"state": {"running": {}}, "ready": False}
    assert state(OURS_WAITS, init=running).message == "waits for the init container setup"
    found = state({**OURS_RUNS, "ready": True}, sidecar=running)
    assert (found.reason, found.message) == (Reason.LOADING, "waits for the container proxy to become ready")
    assert state(OURS_RUNS, sidecar=running).message == ""
