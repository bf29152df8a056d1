from typing import Any

import pytest

from kvasir_contract.reasons import Reason
from kvasir_operator.observe.observed import Object
from kvasir_operator.observe.scheduling import counts_taints, unscheduled, with_taints
from operator_facts import pod

GPU = "nvidia.com/gpu"
COUNTED = (
    "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint(s). preemption: no."
)


def node(*taints: str, gpus: int | str = 0, **spec: Any) -> Object:
    """Return a node with taints such as key=value:NoSchedule."""
    listed = []
    for taint in taints:
        name, _, effect = taint.partition(":")
        key, _, value = name.partition("=")
        listed.append({"key": key, "value": value, "effect": effect})
    return {"spec": {"taints": listed, **spec}, "status": {"allocatable": {GPU: str(gpus)}}}


CONTROL = node("node-role.kubernetes.io/control-plane:NoSchedule")
POOL = node("example.com/pool=gpu:NoSchedule", gpus=1)


@pytest.mark.parametrize(
    ("nodes", "reason", "words"),
    [
        ([CONTROL, node()], Reason.INSUFFICIENT_GPU, f"no node has a free {GPU}"),
        ([CONTROL, POOL], Reason.UNSCHEDULABLE, "1 node(s) had untolerated taint {example.com/pool: gpu}"),
        ([node("team=a:NoSchedule"), CONTROL], Reason.INSUFFICIENT_GPU, f"no node has a free {GPU}"),
        ([node("example.com/pool=gpu:NoSchedule", gpus="1k")], Reason.UNSCHEDULABLE, "{example.com/pool: gpu}"),
        ([POOL, POOL], Reason.UNSCHEDULABLE, "2 node(s) had untolerated taint {example.com/pool: gpu}"),
        ([], Reason.UNSCHEDULABLE, "2 node(s) had untolerated taint(s)"),
    ],
    ids=["control plane", "pool", "other pool", "a thousand", "two", "unknown nodes"],
)
def test_taints_count_for_nodes_with_the_resource(nodes: list[Object], reason: Reason, words: str) -> None:
    message = with_taints(pod("demo-engine-0", schedule_message=COUNTED), nodes, GPU)
    failure = unscheduled(message, GPU)
    assert failure.reason is reason
    assert words in failure.message


@pytest.mark.parametrize(
    ("taints", "found"),
    [
        (("a=b:PreferNoSchedule", "c=d:NoExecute"), "1 node(s) had untolerated taint {c: d}."),
        (("ours:NoSchedule", "c=d:NoSchedule"), "1 node(s) had untolerated taint {c: d}."),
        (("ours:NoSchedule",), "2 node(s) had untolerated taint(s)."),
    ],
)
def test_the_taint_that_rejects_the_pod_is_named(taints: tuple[str, ...], found: str) -> None:
    waiting = pod("demo-engine-0", schedule_message=COUNTED, tolerations=({"key": "ours", "operator": "Exists"},))
    assert found in with_taints(waiting, [node(*taints)], "")


def test_a_cordoned_node_counts_as_cordoned() -> None:
    cordoned = node("example.com/pool=gpu:NoSchedule", gpus=1, unschedulable=True)
    assert with_taints(pod("demo-engine-0", schedule_message=COUNTED), [cordoned], GPU) == COUNTED


@pytest.mark.parametrize(
    ("message", "counted"),
    [
        (COUNTED, True),
        ("0/1 nodes are available: 1 node(s) had untolerated taint {a: b}.", False),
        ("0/1 nodes are available: 1 node(s) had taint {a: b}, that the pod didn't tolerate.", False),
        ("0/1 nodes are available: 1 Insufficient cpu.", False),
    ],
)
def test_messages_with_named_taints_are_left_alone(message: str, counted: bool) -> None:
    assert counts_taints(message) is counted
