import json
from typing import Any

import pytest

from kvasir_contract.failure import Failure
from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_contract.status_report import StatusReport
from kvasir_operator.observe.observed import Object
from kvasir_operator.observe.pod_state import MAX_MESSAGE_BYTES
from pod_facts import CRASHED, LINE, RUNNING, SCHEDULED, ended, has, pod, state_of, unscheduled, waiting

LEAVING = "2026-11-21T07:00:00Z"
TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nKeyError: 3\n'
FROM_THE_POD: dict[str, tuple[Object, Phase, Reason, str]] = {
    "just created": (pod({}), Phase.SCHEDULING, Reason.LOADING, ""),
    "no node": (
        unscheduled("0/3 nodes match"),
        Phase.SCHEDULING,
        Reason.UNSCHEDULABLE,
        "no node accepts the pod (0/3 nodes match)",
    ),
    "no GPU": (
        unscheduled("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
        Phase.SCHEDULING,
        Reason.INSUFFICIENT_GPU,
        "no node has a free nvidia.com/gpu",
    ),
    "no CPU": (
        unscheduled("3 Insufficient cpu."),
        Phase.SCHEDULING,
        Reason.UNSCHEDULABLE,
        "no node accepts the pod (3 Insufficient cpu.)",
    ),
    "has a node": (pod({"conditions": [SCHEDULED]}), Phase.PULLING, Reason.LOADING, ""),
    "image is pulled": (waiting("ContainerCreating"), Phase.PULLING, Reason.LOADING, ""),
    "no image": (
        waiting("ImagePullBackOff", "not found"),
        Phase.PULLING,
        Reason.IMAGE_PULL_FAILED,
        "image kvasir:1 cannot be pulled (not found): check spec.image",
    ),
    "no Secret": (
        waiting("CreateContainerConfigError", 'secret "t" not found'),
        Phase.STARTING,
        Reason.INVALID_SPEC,
        'secret "t" not found: create it',
    ),
    "cannot be run": (
        waiting("RunContainerError", "no such file"),
        Phase.STARTING,
        Reason.CRASH_LOOPING,
        "the container cannot be started (no such file)",
    ),
    "started": (RUNNING, Phase.STARTING, Reason.LOADING, ""),
    "crashed": (has(CRASHED), Phase.FAILED, Reason.MODEL_NOT_FOUND, "/x does not exist"),
    "in back-off": (
        waiting("CrashLoopBackOff", lastState=CRASHED, restartCount=3),
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
    "after one crash": (
        has({"running": {}}, lastState=CRASHED, restartCount=1),
        Phase.STARTING,
        Reason.MODEL_NOT_FOUND,
        "/x does not exist (restarted once)",
    ),
    "ended well": (
        has(ended(0, reason="Completed")),
        Phase.STARTING,
        Reason.LOADING,
        "the container is being restarted",
    ),
    "evicted": (
        pod({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory"}),
        Phase.FAILED,
        Reason.CRASH_LOOPING,
        "The node was low on memory",
    ),
    "leaving": (
        pod({"conditions": [SCHEDULED]}, deletionTimestamp=LEAVING),
        Phase.DRAINING,
        Reason.ROLLING_OUT,
        "",
    ),
    "leaving and ready": (
        pod(has({"running": {}}, ready=True)["status"], deletionTimestamp=LEAVING),
        Phase.DRAINING,
        Reason.ROLLING_OUT,
        "",
    ),
    "serving": (has({"running": {}}, ready=True), Phase.READY, Reason.AS_DESIRED, ""),
}


@pytest.mark.parametrize("case", FROM_THE_POD)
def test_pod_state_without_a_report(case: str) -> None:
    resource, phase, reason, words = FROM_THE_POD[case]
    found = state_of(resource)
    assert (found.pod, found.phase, found.reason) == ("demo-engine-0", phase, reason)
    assert found.message.startswith(words)
    assert bool(found.message) == bool(words)
    assert found.ready is (case == "serving")


TAINT = "1 node(s) had untolerated taint {nvidia.com/gpu: present}"
CONTROL = "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }"
NOT_READY = "1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }"
LACK = "2 Insufficient nvidia.com/gpu"
SELECTOR = "1 node(s) didn't match Pod's node affinity/selector"
PREEMPTION = "preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."


@pytest.mark.parametrize(
    ("parts", "reason", "words"),
    [
        ([TAINT, LACK], Reason.UNSCHEDULABLE, [TAINT, "engine.pod.tolerations", "the other nodes have no free"]),
        ([LACK, TAINT], Reason.UNSCHEDULABLE, [TAINT, "engine.pod.tolerations"]),
        (["1 node(s) had untolerated taint(s)", LACK], Reason.UNSCHEDULABLE, ["taint(s): add it"]),
        (["1 node(s) had taint {a: b}, that the pod didn't tolerate", LACK], Reason.UNSCHEDULABLE, ["tolerations"]),
        ([SELECTOR, LACK], Reason.UNSCHEDULABLE, [SELECTOR, "engine.pod.nodeSelector"]),
        ([TAINT, SELECTOR], Reason.UNSCHEDULABLE, [f"pod: {TAINT}", SELECTOR]),
        (["1 node(s) had volume node affinity conflict", LACK], Reason.UNSCHEDULABLE, ["engine.pod.volumes"]),
        (['persistentvolumeclaim "m" not found'], Reason.UNSCHEDULABLE, ['"m" not found: create or correct']),
        (["1 node(s) didn't match pod topology spread constraints"], Reason.UNSCHEDULABLE, ["relax engine.pod"]),
        ([CONTROL, LACK], Reason.INSUFFICIENT_GPU, ["add nodes or free one"]),
        ([NOT_READY, LACK], Reason.INSUFFICIENT_GPU, ["add nodes or free one"]),
        ([CONTROL, TAINT, LACK], Reason.UNSCHEDULABLE, [f"pod: {TAINT}: add"]),
        (["2 Insufficient nvidia.com/gpu.shared"], Reason.UNSCHEDULABLE, ["check engine.pod.resources"]),
        (["1 Insufficient cpu", LACK], Reason.INSUFFICIENT_GPU, ["add nodes"]),
    ],
)
def test_an_unscheduled_pod_names_taints_and_selectors_first(
    parts: list[str], reason: Reason, words: list[str]
) -> None:
    found = state_of(unscheduled(f"0/4 nodes are available: {', '.join(parts)}. {PREEMPTION}"))
    assert (found.phase, found.reason) == (Phase.SCHEDULING, reason)
    positions = [found.message.find(word) for word in words]
    assert -1 not in positions, found.message
    assert positions == sorted(positions), found.message
    assert parts[0] in found.message


def test_a_gated_pod_is_queued() -> None:
    gates = {"containers": [{"name": "engine"}], "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "blocked"}
    found = state_of({**pod({"conditions": [condition]}), "spec": gates})
    assert (found.phase, found.reason) == (Phase.SCHEDULING, Reason.QUEUED)
    assert "kueue.x-k8s.io/admission" in found.message
    assert not found.reason.is_failure


def test_a_pod_for_which_a_node_is_added_is_not_a_failure() -> None:
    found = state_of(unscheduled(LACK), scale_up="pod triggered scale-up: [{pool 0->1 (max: 4)}]")
    assert (found.reason, found.reason.is_failure) == (Reason.WAITING_FOR_NODE, False)
    assert "0->1" in found.message


ENDED: dict[str, tuple[dict[str, Any], Reason, str]] = {
    "a failure": (ended(2, LINE), Reason.MODEL_NOT_FOUND, "/x does not exist"),
    "a failure after a log": (ended(1, f"{TRACEBACK}{LINE}\n"), Reason.MODEL_NOT_FOUND, "/x does not exist"),
    "the last of two failures": (
        ended(1, LINE + "\n" + Failure(Reason.DOWNLOAD_FAILED, "timeout").to_json()),
        Reason.DOWNLOAD_FAILED,
        "timeout",
    ),
    "a log line after the failure": (ended(1, f"{LINE}\nbye\n"), Reason.MODEL_NOT_FOUND, "/x does not exist"),
    "a reason of another release": (
        ended(1, '{"reason": "Bored", "message": "m"}'),
        Reason.CRASH_LOOPING,
        'the container ended with exit code 1: {"reason": "Bored", "message": "m"}',
    ),
    "JSON of another kind": (
        ended(1, json.dumps({"level": "error", "message": "model not found"})),
        Reason.CRASH_LOOPING,
        'the container ended with exit code 1: {"level": "error"',
    ),
    "an unexpected error": (
        ended(1, TRACEBACK),
        Reason.CRASH_LOOPING,
        "the container ended with exit code 1: KeyError: 3",
    ),
    "a user's error without a failure": (ended(2, "--x is not an option\n"), Reason.INVALID_SPEC, "--x is not an"),
    "no message": (ended(1), Reason.CRASH_LOOPING, "the container ended with exit code 1: see the pod's log"),
    "blank lines": (ended(1, "\n \n"), Reason.CRASH_LOOPING, "the container ended with exit code 1: see the pod's"),
    "the image's own words": (
        ended(127, 'exec: "kvasir": executable file not found in $PATH'),
        Reason.CRASH_LOOPING,
        'the container ended with exit code 127: exec: "kvasir": executable file not found in $PATH',
    ),
    "killed": (ended(137), Reason.CRASH_LOOPING, "the container was killed (SIGKILL): see the pod's log"),
    "killed for memory": (
        ended(137, reason="OOMKilled"),
        Reason.OUT_OF_MEMORY,
        "the container exceeded its memory limit",
    ),
    "killed for memory after a failure": (
        ended(137, LINE, reason="OOMKilled"),
        Reason.OUT_OF_MEMORY,
        "the container exceeded its memory limit",
    ),
}


@pytest.mark.parametrize("case", ENDED)
@pytest.mark.parametrize("place", ["state", "lastState"])
def test_pod_state_of_a_container_that_ended(case: str, place: str) -> None:
    terminated, reason, words = ENDED[case]
    found = state_of(has(terminated) if place == "state" else waiting("CrashLoopBackOff", lastState=terminated))
    assert (found.phase, found.reason) == (Phase.FAILED, reason)
    assert found.message.startswith(words)


def test_a_container_that_ended_well_shows_the_crash_before() -> None:
    found = state_of(has(ended(0, reason="Completed"), lastState=CRASHED))
    assert (found.phase, found.reason) == (Phase.FAILED, Reason.MODEL_NOT_FOUND)


@pytest.mark.parametrize(
    "reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"]
)
def test_an_image_that_cannot_be_pulled_is_named(reason: str) -> None:
    found = state_of(waiting(reason))
    assert (found.phase, found.reason) == (Phase.PULLING, Reason.IMAGE_PULL_FAILED)
    assert found.message.startswith("image kvasir:1 cannot be pulled: check")


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", "CrashLoopBackOff", ""])
def test_waiting_alone_is_not_a_failure(reason: str) -> None:
    found = state_of(waiting(reason))
    assert (found.phase, found.reason, found.message) == (Phase.PULLING, Reason.LOADING, "")


def test_restarts_are_those_of_our_container() -> None:
    resource = has({"running": {}}, ready=True, restartCount=3)
    resource["status"]["containerStatuses"].insert(0, {"name": "proxy", "state": {}, "restartCount": 8})
    assert state_of(resource).restarts == 3
    assert state_of(pod({})).restarts == 0


@pytest.mark.parametrize("metadata", [{}, {"deletionTimestamp": LEAVING}], ids=["staying", "leaving"])
def test_an_unready_pod_of_a_lost_node_has_failed(metadata: dict[str, str]) -> None:
    found = state_of(pod(RUNNING["status"], **metadata), lost_node="node n1 is not ready (Kubelet stopped)")
    assert (found.phase, found.reason) == (Phase.FAILED, Reason.NODE_LOST)
    assert found.message.startswith("node n1 is not ready (Kubelet stopped)")


def test_a_ready_pod_of_a_lost_node_still_serves() -> None:
    assert state_of(has({"running": {}}, ready=True), lost_node="node n1 is not ready").ready


def test_a_volume_that_cannot_be_mounted_is_named() -> None:
    found = state_of(waiting("ContainerCreating"), mount_failure='secret "absent" not found')
    assert (found.phase, found.reason) == (Phase.PULLING, Reason.VOLUME_FAILED)
    assert found.message.startswith('a volume cannot be mounted (secret "absent" not found): create ')


def test_an_old_mount_failure_does_not_hide_the_image() -> None:
    found = state_of(waiting("ImagePullBackOff"), mount_failure="it was so once")
    assert found.reason is Reason.IMAGE_PULL_FAILED
    assert state_of(RUNNING, mount_failure="it was so once").reason is Reason.LOADING


@pytest.mark.parametrize("letter", ["x", "é", "🙂"])
def test_messages_are_cut_by_bytes(letter: str) -> None:
    huge = letter * 100_000
    states = [
        state_of(has(ended(1, huge))),
        state_of(has(ended(1, Failure(Reason.MODEL_NOT_FOUND, huge).to_json()))),
        state_of(waiting("ImagePullBackOff", huge)),
        state_of(waiting("CreateContainerConfigError", huge)),
        state_of(unscheduled(huge)),
        state_of(pod({"phase": "Failed", "message": huge})),
        state_of(RUNNING, lost_node=huge),
        state_of(waiting("ContainerCreating"), mount_failure=huge),
        state_of(RUNNING, report=StatusReport(Phase.LOADING, huge)),
        state_of(has({"running": {}}, ready=True), report=StatusReport(Phase.READY, huge, Reason.LINK_REFUSED)),
    ]
    for found in states:
        size = len(found.message.encode())
        assert MAX_MESSAGE_BYTES - 4 <= size <= MAX_MESSAGE_BYTES
        assert found.message.endswith("…")


def test_a_message_within_the_limit_is_kept() -> None:
    text = "é" * (MAX_MESSAGE_BYTES // 2)
    assert state_of(pod({"phase": "Failed", "message": text})).message == text


def test_a_pod_of_several_workers_names_the_number_of_gpus() -> None:
    pending = unscheduled("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    found = state_of(pending, amount_of_resource=4)
    assert found.reason is Reason.INSUFFICIENT_GPU
    assert found.message.startswith("no node has 4 free nvidia.com/gpu (0/3 nodes are available")
    assert "free 4 on one node, create the service with more engine.nodes" in found.message
