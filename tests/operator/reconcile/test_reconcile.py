"""Reconciles with an in-memory API server: children, times of status writes, and state between calls."""

from dataclasses import replace

import pytest

from kvasir_operator.cluster.kinds import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    POD,
    SECRET,
    SERVICE,
    STATEFUL_SET,
)
from kvasir_operator.observe.pod_events import OVERDUE_SECONDS
from kvasir_operator.plan.conditions import STALLED_SECONDS
from kvasir_operator.reconciler import STATUS_INTERVAL_SECONDS
from mock_cluster import refusal
from mock_operator import Operator
from operator_facts import RELEASE


async def test_a_new_service_gets_all_its_children_in_one_pass(operator: Operator) -> None:
    operator.cluster.add_service()
    await operator.once()
    assert operator.cluster.names(SERVICE) == ["demo", "demo-engine", "demo-frontend"]
    assert operator.cluster.names(DISRUPTION_BUDGET) == ["demo-engine", "demo-frontend"]
    assert operator.cluster.names(NETWORK_POLICY) == ["demo-engine", "demo-frontend"]
    assert operator.cluster.names(STATEFUL_SET) == ["demo-engine"]
    assert operator.cluster.names(DEPLOYMENT) == ["demo-frontend"]
    assert operator.cluster.condition("Progressing")[0] == "True"


async def test_applied_children_are_not_applied_again(settled: Operator) -> None:
    for _ in range(3):
        assert await settled.later() is None
    assert {verb for verb, _ in settled.cluster.calls} == {"get", "list"}
    assert settled.cluster.statuses == []


async def test_a_deleted_child_comes_back(settled: Operator) -> None:
    settled.cluster.remove(DISRUPTION_BUDGET, "demo-engine")
    await settled.later()
    assert settled.cluster.names(DISRUPTION_BUDGET) == ["demo-engine", "demo-frontend"]
    assert settled.cluster.calls["apply", "PodDisruptionBudget"] == 1


async def test_an_inherited_label_reaches_workloads_and_pods(settled: Operator) -> None:
    settled.restart(replace(RELEASE, inherited_labels=("team",)))
    settled.cluster.of(INFERENCE_SERVICE, "demo")["metadata"]["labels"] = {"team": "a", "other": "x"}
    await settled.once()
    for kind, name in ((STATEFUL_SET, "demo-engine"), (DEPLOYMENT, "demo-frontend"), (SERVICE, "demo")):
        child = settled.cluster.of(kind, name)
        assert child["metadata"]["labels"]["team"] == "a"
        assert "other" not in child["metadata"]["labels"]
    assert settled.cluster.of(STATEFUL_SET, "demo-engine")["spec"]["template"]["metadata"]["labels"]["team"] == "a"


async def test_a_restarted_operator_applies_again_and_changes_nothing(settled: Operator) -> None:
    before = {name: resource["metadata"]["resourceVersion"] for name, resource in settled.cluster.objects.items()}
    settled.restart()
    assert await settled.later() is None
    assert settled.cluster.calls["apply", "StatefulSet"] == 1
    assert settled.cluster.statuses == []
    after = {name: resource["metadata"]["resourceVersion"] for name, resource in settled.cluster.objects.items()}
    assert after == before


async def test_children_that_are_no_longer_wanted_are_deleted(settled: Operator) -> None:
    settled.cluster.change_service(network={"policy": False})
    await settled.later()
    assert settled.cluster.names(NETWORK_POLICY) == []


async def test_a_foreign_object_of_a_childs_name_is_left_alone(operator: Operator) -> None:
    foreign = operator.cluster.put(SERVICE, {"metadata": {"name": "demo", "namespace": "default"}, "spec": {}})
    operator.cluster.add_service()
    await operator.once()
    assert operator.cluster.of(SERVICE, "demo") == foreign
    assert operator.cluster.condition("Ready") == ("False", "NameTaken")
    assert "url" not in operator.cluster.status()


async def test_two_status_writes_are_never_closer_than_the_interval(operator: Operator) -> None:
    operator.cluster.add_service()
    await operator.once()
    operator.cluster.run_controllers()
    operator.clock.seconds += 0.5
    assert await operator.once() == pytest.approx(STATUS_INTERVAL_SECONDS - 0.5)
    assert len(operator.cluster.statuses) == 1
    operator.clock.seconds += STATUS_INTERVAL_SECONDS - 0.5
    await operator.once()
    times = [written for written, _ in operator.cluster.statuses]
    assert len(times) == 2
    assert times[1] - times[0] >= STATUS_INTERVAL_SECONDS


async def test_the_sooner_of_two_waits_is_returned(operator: Operator) -> None:
    operator.cluster.add_service(engine={"dataParallelSize": 1})
    operator.cluster.refused["apply", DISRUPTION_BUDGET] = refusal(403)
    await operator.once()
    operator.cluster.run_controllers()
    operator.clock.seconds += 1.5
    assert await operator.once() == pytest.approx(0.5)  # the status may be written then
    assert await operator.later(0.5) == STALLED_SECONDS - STATUS_INTERVAL_SECONDS


async def test_a_change_is_under_way_until_it_is_observed(settled: Operator) -> None:
    """The pass that applies a new template, and all later passes, report in the status that it is under way."""
    settled.cluster.change_service(engine={"maxNumSeqs": 8})
    await settled.later()
    assert settled.cluster.status()["observedGeneration"] == 2
    assert settled.cluster.condition("Progressing") == ("True", "RollingOut")
    await settled.later()
    assert settled.cluster.condition("Progressing") == ("True", "RollingOut")
    await settled.settle()


async def test_a_spec_that_cannot_be_used_is_reported(settled: Operator) -> None:
    settled.cluster.of(INFERENCE_SERVICE, "demo")["spec"]["rollout"]["drainTimeout"] = "soon"
    assert await settled.later() is None
    assert settled.cluster.condition("Ready") == ("True", "InvalidSpec")
    assert "spec.rollout.drainTimeout: 'soon'" in settled.cluster.ready_message()
    assert settled.cluster.status()["engines"]["ready"] == 1
    assert settled.cluster.calls["list", "Pod"] == 0


async def test_a_deleted_service_is_forgotten(settled: Operator) -> None:
    secret = settled.cluster.link_secret()
    settled.cluster.objects.clear()
    assert await settled.later() is None
    settled.cluster.add_service(uid="uid-1")
    await settled.settle()
    assert settled.cluster.names(SECRET) == [settled.cluster.link_secret()] != [secret]


async def test_a_service_of_another_uid_is_another_one(settled: Operator) -> None:
    secret = settled.cluster.link_secret()
    settled.cluster.objects.clear()
    settled.cluster.add_service(uid="uid-2")
    await settled.settle()
    assert settled.cluster.names(SECRET) == [settled.cluster.link_secret()] != [secret]


async def test_a_service_that_is_being_deleted_is_left_alone(settled: Operator) -> None:
    settled.cluster.of(INFERENCE_SERVICE, "demo")["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    settled.cluster.remove(SERVICE, "demo")
    assert await settled.later() is None
    assert set(settled.cluster.calls) == {("get", "InferenceService")}


@pytest.mark.parametrize(("of_service", "of_operator"), [("", "gpu"), ("gpu", ""), ("gpu", "cpu")])
async def test_a_service_of_another_class_is_left_alone(
    operator: Operator, of_service: str, of_operator: str
) -> None:
    operator.cluster.add_service(operatorClass=of_service)
    operator.restart(operator_class=of_operator)
    assert await operator.once() is None
    assert set(operator.cluster.calls) == {("get", "InferenceService")}


async def test_a_service_of_the_operators_class_is_handled(operator: Operator) -> None:
    operator.cluster.add_service(operatorClass="gpu")
    operator.restart(operator_class="gpu")
    await operator.settle()


async def test_a_missing_pod_is_explained_once_it_is_overdue(settled: Operator) -> None:
    settled.cluster.remove(POD, "demo-engine-0")
    settled.cluster.forbidden.add("demo-engine-0")
    settled.cluster.run_controllers()
    await settled.later()
    assert settled.cluster.calls["list", "Event"] == 0
    assert await settled.later(OVERDUE_SECONDS - 0.5) is not None
    assert settled.cluster.calls["list", "Event"] == 0
    await settled.later(0.5)
    assert settled.cluster.calls["list", "Event"] == 1
    assert settled.cluster.condition("EnginesReady") == ("False", "Unschedulable")
    assert "exceeded quota: pods" in settled.cluster.status()["engines"]["ranks"][0]["message"]


async def test_a_flip_of_ready_is_an_event(settled: Operator) -> None:
    assert ("Ready", "1/1 engines are ready, 1/1 frontends are ready") in settled.cluster.recorded_events
    settled.cluster.of(POD, "demo-engine-0")["status"]["conditions"] = []
    await settled.later()
    assert [reason for reason, _ in settled.cluster.recorded_events].count("NotReady") == 1
