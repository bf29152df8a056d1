from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kvasir_operator.observe.observed import WorkloadState
from kvasir_operator.plan.frontend_rollout import FrontendRollout, roll_frontends, with_scaled_frontends
from operator_facts import SURGE_SECONDS, frontends, observed, service, workload

DRAINED = frozenset({"a"})


def rolled(pods: Sequence[str], desired: int = 1, waited: float = 1.0, **facts: Any) -> FrontendRollout:
    of = service(frontends=desired)
    deployment = facts.pop("deployment", workload(len(pods)))
    front = frontends(*pods, waited=waited)
    return roll_frontends(of, observed(of, (), front, deployment=deployment, **facts))


def drained(pods: Sequence[str], desired: int = 1, **facts: Any) -> tuple[int, list[str]]:
    found = rolled(pods, desired, cordoned=DRAINED, **facts)
    assert found.replicas is not None
    return found.replicas, [deletion.pod.name.rpartition("-")[2] for deletion in found.deletions]


@pytest.mark.parametrize(
    ("pods", "desired", "expected"),
    [
        (["ready @a"], 1, (2, [])),  # first one more
        (["ready @a", "starting @b"], 1, (2, [])),
        (["ready @a", "ready @b"], 1, (2, ["a"])),  # it serves
        (["ready @b"], 1, (1, [])),  # done
        (["ready @a", "ready @a", "ready @b"], 2, (3, ["a"])),  # one at a time
        (["ready @a", "unready @b"], 2, (3, [])),
        (["ready @a", "ready @b", "ready @b"], 2, (3, ["a"])),
        (["unready @a", "ready @b"], 2, (3, ["a"])),  # deleting it loses nothing
        (["ready @a", "unready @a", "ready @b"], 2, (3, ["b"])),
        (["ready @a", "crashing @b"], 1, (2, [])),
    ],
)
def test_frontends_leave_a_drained_node_as_others_serve(
    pods: list[str], desired: int, expected: tuple[int, list[str]]
) -> None:
    assert drained(pods, desired) == expected


@pytest.mark.parametrize(
    ("pods", "desired"),
    [
        (["ready @a", "pending"], 1),
        (["ready @a", "ready @b", "pending"], 2),
        (["ready @a", "unready @b", "pending"], 2),
        (["ready @a", "loading @b"], 1),
    ],
)
def test_without_room_no_serving_frontend_is_deleted(pods: list[str], desired: int) -> None:
    """A cordon alone must not end the service: the drain waits until a node has room."""
    assert drained(pods, desired, waited=100 * SURGE_SECONDS) == (desired + 1, [])


def test_no_frontend_is_deleted_before_the_spec_is_observed() -> None:
    unseen = workload(2, is_observed=False)
    assert drained(["ready @a", "ready @b"], deployment=unseen) == (2, [])


def test_a_deletion_names_the_pod_and_the_node() -> None:
    found = rolled(["ready @a", "ready @b"], cordoned=DRAINED)
    (deletion,) = found.deletions
    assert deletion.why == "pod demo-frontend-a is on node a, which is being drained"
    assert (deletion.event, deletion.grace) == ("Replacing", None)


@pytest.mark.parametrize("ready", [1, 2, 3])
def test_a_drain_ends_and_frontends_never_lack(ready: int) -> None:
    """A simulation in which a pod is ready two rounds after its creation."""
    pods = ["ready @a"] * ready
    replicas = ready
    for _ in range(30):
        replicas, deleted = drained(pods, ready, deployment=workload(replicas))
        pods = [pod for index, pod in enumerate(pods) if "abcdefgh"[index] not in deleted]
        pods += ["pulling @b"] * (replicas - len(pods))
        while len(pods) > replicas:  # the controller deletes the youngest
            pods.pop()
        assert sum(pod.startswith("ready") for pod in pods) >= ready
        pods = [pod.replace("loading", "ready").replace("pulling", "loading") for pod in pods]
        if pods == ["ready @b"] * ready:
            return
    raise AssertionError(f"the drain did not end: {pods}")


@pytest.mark.parametrize(
    ("deployment", "words"),
    [
        (workload(1), ""),
        (workload(1, pods=0), ""),
        (workload(1, is_observed=False), "the Deployment controller has not processed"),
        (workload(1, pods=2, updated=1), "1 frontend pod still runs the old revision"),
        (workload(1, pods=3, updated=1), "2 frontend pods still run the old revision"),
        (workload(1, pods=2, updated=2), "1 frontend pod is being removed"),
        (workload(1, pods=3, updated=3), "2 frontend pods are being removed"),
    ],
)
def test_the_deployments_roll_out_is_under_way(deployment: Any, words: str) -> None:
    found = rolled(["ready"], deployment=deployment)
    assert found.under_way.startswith(words)
    assert bool(found.under_way) == bool(words)
    assert (found.replicas, found.deletions) == (1, ())


def test_the_first_frontends_are_not_a_rollout() -> None:
    assert rolled(["loading"], deployment=workload(1, pods=0, updated=0, is_observed=False)).under_way == ""


def test_a_drain_is_under_way() -> None:
    assert rolled(["ready @a"], cordoned=DRAINED).under_way == "1 frontend pod is on a node that is being drained"
    two = rolled(["ready @a", "ready @a"], 2, cordoned=DRAINED, deployment=workload(2, is_observed=False)).under_way
    assert two.startswith("the Deployment controller has not processed")
    assert two.endswith("; 2 frontend pods are on a node that is being drained")


@pytest.mark.parametrize(
    ("pods", "scaled", "expected"),
    [
        (["ready @b"], workload(1, applies_replicas=False), (None, [])),
        (["ready @b"] * 3, workload(3, applies_replicas=False), (None, [])),
        (["ready @a"], workload(1, applies_replicas=False), (2, [])),  # the only one: first one more
        (["ready @a", "ready @b"], workload(2), (2, ["a"])),  # the operator has added one
        (["ready @b", "ready @b"], workload(2), (None, [])),  # and leaves it to the autoscaler afterwards
        (["ready @a", "ready @b"], workload(2, applies_replicas=False), (None, ["a"])),
        (["ready @a", "starting @b"], workload(2, applies_replicas=False), (None, [])),
        (["ready @a", "ready @a", "ready @b"], workload(3, applies_replicas=False), (None, ["a"])),
        ([], workload(0, applies_replicas=False), (1, [])),  # autoscalers do not scale up from 0
        (["ready @b"], None, (None, [])),
    ],
)
def test_an_autoscalers_number_of_frontends_is_kept(
    pods: list[str], scaled: WorkloadState | None, expected: tuple[int | None, list[str]]
) -> None:
    of = service()
    of = replace(of, frontend=replace(of.frontend, is_autoscaled=True))
    front = frontends(*pods)
    of = with_scaled_frontends(of, scaled)
    found = roll_frontends(of, observed(of, (), front, deployment=scaled, cordoned=DRAINED))
    assert (found.replicas, [deletion.pod.name.rpartition("-")[2] for deletion in found.deletions]) == expected


def test_a_number_in_the_spec_is_not_an_autoscalers() -> None:
    of = service(frontends=2)
    assert with_scaled_frontends(of, workload(5, applies_replicas=False)) is of


def test_a_missing_deployment_gets_the_desired_frontends() -> None:
    assert rolled(["ready @a"], 3, deployment=None, cordoned=DRAINED) == FrontendRollout(3)


def test_a_surplus_is_counted_beyond_the_additional_frontend() -> None:
    drain = "1 frontend pod is on a node that is being drained"
    assert rolled(["ready @a", "ready @b"], cordoned=DRAINED).under_way == drain
    surplus = rolled(["ready @a", "ready @b", "ready @b"], cordoned=DRAINED).under_way
    assert surplus == f"1 frontend pod is being removed; {drain}"
