"""Conversion of the API server's dictionaries to typed facts: ownership of objects, and whether a status is
current."""

from typing import Any, Final

import pytest

from kvasir_contract.api import API_VERSION, COMPONENT_LABEL, INSTANCE_LABEL, KIND, MANAGED_BY_LABEL, MANAGER
from kvasir_operator.observe.objects import (
    child_of,
    event_time,
    node_problem,
    pod_of,
    workload_of,
)
from kvasir_operator.observe.observed import Object, Ownership
from operator_facts import service

OURS = {"kind": "InferenceService", "name": "demo", "uid": "uid-1", "controller": True}
LABELS = {MANAGED_BY_LABEL: MANAGER, INSTANCE_LABEL: "demo"}
APPLIED = [{"manager": MANAGER, "operation": "Apply"}]


def child(**metadata: Any) -> Object:
    return {"metadata": {"name": "demo", "namespace": "default", "uid": "uid-2", **metadata}, "spec": {}}


OWNERSHIPS: dict[str, tuple[Object, Ownership]] = {
    "ours": (child(ownerReferences=[OURS]), Ownership.OURS),
    "ours, without labels": (child(ownerReferences=[OURS], labels={}), Ownership.OURS),
    "ours, with another owner": (
        child(ownerReferences=[{"kind": "Other", "name": "x", "uid": "x"}, OURS]),
        Ownership.OURS,
    ),
    "orphan": (child(labels=LABELS, managedFields=APPLIED), Ownership.ORPHAN),
    "orphan, with an owner that is not its controller": (
        child(labels=LABELS, managedFields=APPLIED, ownerReferences=[{**OURS, "controller": False}]),
        Ownership.ORPHAN,
    ),
    "orphan of a service whose child has the same name": (
        child(labels={**LABELS, INSTANCE_LABEL: "other"}, managedFields=APPLIED),
        Ownership.FOREIGN,
    ),
    "labelled by hand": (child(labels=LABELS), Ownership.FOREIGN),
    "labelled, and updated by our manager": (
        child(labels=LABELS, managedFields=[{"manager": MANAGER, "operation": "Update"}]),
        Ownership.FOREIGN,
    ),
    "labelled, and applied by another manager": (
        child(labels=LABELS, managedFields=[{"manager": "kubectl", "operation": "Apply"}]),
        Ownership.FOREIGN,
    ),
    "applied by our manager, without labels": (child(managedFields=APPLIED), Ownership.FOREIGN),
    "a service of the same name before this one": (
        child(ownerReferences=[{**OURS, "uid": "uid-0"}], labels=LABELS, managedFields=APPLIED),
        Ownership.FOREIGN,
    ),
    "another controller's": (
        child(ownerReferences=[{"kind": "Deployment", "name": "demo", "uid": "x", "controller": True}]),
        Ownership.FOREIGN,
    ),
    "nobody's": (child(), Ownership.FOREIGN),
}


OF: Final = service()


@pytest.mark.parametrize("case", OWNERSHIPS)
def test_child_of_determines_the_owner(case: str) -> None:
    resource, ownership = OWNERSHIPS[case]
    found = child_of(resource, OF)
    assert (found.ownership, found.uid, found.terminating) == (ownership, "uid-2", False)


def test_child_of_an_object_that_is_being_deleted() -> None:
    assert child_of(child(deletionTimestamp="2026-11-21T12:00:00Z"), OF).terminating


@pytest.mark.parametrize(
    ("changed", "leaves"),
    [({}, True), ({"uid": OF.uid}, False), ({"name": "other"}, False), ({"kind": "Deployment"}, False)],
)
def test_a_child_of_an_earlier_service_of_the_name_leaves(changed: dict[str, str], leaves: bool) -> None:
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": OF.name,
        "uid": "uid-0",
        "controller": True,
        **changed,
    }
    assert child_of(child(ownerReferences=[owner]), OF).terminating is leaves


# -------------------------------------------------------------------------------------------------------- workloads


def workload(generation: int, spec: Object, **status: Any) -> Object:
    return {"metadata": {"name": "w", "uid": "uid-w", "generation": generation}, "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("status", "is_observed"),
    [
        ({}, False),
        ({"observedGeneration": 1}, False),
        ({"observedGeneration": 2}, True),
        ({"observedGeneration": 3}, True),
    ],
)
def test_workload_of_compares_generations(status: dict[str, int], is_observed: bool) -> None:
    assert workload_of(workload(2, {"replicas": 1}, **status)).is_observed is is_observed


def test_workload_of_a_new_object_has_no_status() -> None:
    found = workload_of({"metadata": {"uid": "uid-w", "generation": 1}, "spec": {}})
    assert (found.replicas, found.pods, found.updated, found.revision, found.failure) == (1, 0, 0, "", "")
    assert not found.is_observed


def test_workload_of_reads_counts_and_revision() -> None:
    status = {"observedGeneration": 2, "updateRevision": "r-2", "replicas": 3, "updatedReplicas": 1}
    found = workload_of(workload(2, {"replicas": 2}, **status))
    assert (found.uid, found.replicas, found.pods, found.updated, found.revision) == ("uid-w", 2, 3, 1, "r-2")


@pytest.mark.parametrize(("status", "failure"), [("True", "exceeded quota"), ("False", ""), ("Unknown", "")])
def test_workload_of_a_deployment_names_its_failure(status: str, failure: str) -> None:
    condition = {"type": "ReplicaFailure", "status": status, "message": "exceeded quota"}
    assert workload_of(workload(1, {"replicas": 1}, conditions=[condition])).failure == failure


# ------------------------------------------------------------------------------------------------------------- pods


def pod(status: Object | None = None, spec: Object | None = None, **metadata: Any) -> Object:
    return {
        "metadata": {"name": "demo-engine-12", "namespace": "default", "uid": "uid-3", **metadata},
        "spec": {"containers": [], **(spec or {})},
        **({} if status is None else {"status": status}),
    }


def test_pod_of_a_new_pod() -> None:
    found = pod_of(pod())
    assert (found.ordinal, found.node, found.ip, found.scheduled, found.ready) == (12, "", "", None, False)
    assert (found.container.state, found.container.ended, found.container.restarts) == ("", None, 0)
    assert found.reference == {"metadata": {"name": "demo-engine-12", "namespace": "default", "uid": "uid-3"}}


def test_pod_of_reads_the_addresses_of_both_families() -> None:
    resource = pod()
    resource["status"] = {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "FD00:0::1"}]}
    assert pod_of(resource).addresses == {"10.0.0.1", "fd00::1"}
    assert pod_of(pod()).addresses == frozenset()


@pytest.mark.parametrize(
    ("condition", "node", "scheduled"),
    [("True", "n1", True), ("False", "", False), ("Unknown", "", None), (None, "n1", True), (None, "", None)],
)
def test_pod_of_determines_whether_it_is_scheduled(
    condition: str | None, node: str, scheduled: bool | None
) -> None:
    conditions = [] if condition is None else [{"type": "PodScheduled", "status": condition}]
    assert pod_of(pod({"conditions": conditions}, {"nodeName": node})).scheduled is scheduled


def test_pod_of_a_leaving_pod_is_not_ready() -> None:
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    assert pod_of(pod(status)).ready
    leaving = pod_of(pod(status, deletionTimestamp="2026-11-21T12:00:00Z"))
    assert (leaving.ready, leaving.terminating) == (False, True)


def test_pod_of_reads_our_container_among_injected_ones() -> None:
    """A webhook may put a proxy before or after our container."""
    proxy = {"name": "proxy", "image": "proxy:1"}
    ours = {"name": "engine", "image": "engine:1"}
    ended = {"terminated": {"exitCode": 2, "message": "proxy"}}
    status = {
        "containerStatuses": [
            {"name": "proxy", "state": ended, "restartCount": 9},
            {"name": "engine", "state": {"running": {}}, "restartCount": 1},
        ]
    }
    for containers in ([proxy, ours], [ours, proxy]):
        found = pod_of(pod(status, {"containers": containers}, labels={COMPONENT_LABEL: "engine"}))
        assert (found.container.image, found.container.state) == ("engine:1", "running")
        assert (found.container.restarts, found.container.ended) == (1, None)


def test_pod_of_a_pod_without_our_container() -> None:
    status = {"containerStatuses": [{"name": "proxy", "state": {"running": {}}}]}
    found = pod_of(
        pod(status, {"containers": [{"name": "proxy", "image": "p"}]}, labels={COMPONENT_LABEL: "engine"})
    )
    assert (found.container.image, found.container.state) == ("", "")


@pytest.mark.parametrize(("phase", "ended"), [("Failed", True), ("Succeeded", True), ("Running", False)])
def test_pod_of_a_pod_that_is_over(phase: str, ended: bool) -> None:
    assert pod_of(pod({"phase": phase})).has_ended is ended


# ------------------------------------------------------------------------------------------------- nodes and Events


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ("True", ""),
        ("False", ""),  # the kubelet reports it, so it is alive
        ("Unknown", "node n1 does not respond (kubelet stopped)"),
        (None, ""),
    ],
)
def test_node_problem(status: str | None, problem: str) -> None:
    condition = {"type": "Ready", "status": status, "message": "kubelet stopped", "reason": "NodeStatusUnknown"}
    conditions = [{"type": "MemoryPressure", "status": "False"}, *([condition] if status else [])]
    assert node_problem({"metadata": {"name": "n1"}, "status": {"conditions": conditions}}) == problem


@pytest.mark.parametrize(
    ("event", "time"),
    [
        ({"lastTimestamp": "2026-11-21T12:00:00Z", "eventTime": None}, "2026-11-21T12:00:00Z"),
        ({"lastTimestamp": None, "eventTime": "2026-11-21T12:00:01.000001Z"}, "2026-11-21T12:00:01.000001Z"),
        (
            {"eventTime": "2026-11-21T12:00:01Z", "series": {"lastObservedTime": "2026-11-21T12:09:00Z"}},
            "2026-11-21T12:09:00Z",
        ),
        ({"eventTime": "2026-11-21T12:00:01Z", "series": None}, "2026-11-21T12:00:01Z"),
        ({}, ""),
    ],
    ids=["old", "new", "new and repeated", "null series", "none"],
)
def test_event_time_of_old_and_new_events(event: Object, time: str) -> None:
    assert event_time(event) == time
