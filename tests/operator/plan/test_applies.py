from dataclasses import replace

import pytest

from kvasir_contract.reasons import Reason
from kvasir_operator.cluster.kinds import SERVICE, kind_of
from kvasir_operator.observe.observed import ChildKey, Object, Observed, Ownership, Refusal
from kvasir_operator.plan.applies import digest, digest_of, plan_applies
from kvasir_operator.plan.conditions import condition
from kvasir_operator.plan.next_look import BLOCKED_INTERVAL_SECONDS
from kvasir_operator.plan.plan import make_plan
from kvasir_operator.resources.children import children
from operator_facts import NOON, RELEASE, SECRET_NAME, engines, frontends, observed, service

KEY: ChildKey = (SERVICE, "demo")


def desired() -> list[Object]:
    return list(children(service(), RELEASE, SECRET_NAME))


def body_of_service() -> Object:
    return next(body for body in desired() if (kind_of(body), body["metadata"]["name"]) == KEY)


def refused(body: Object, seconds_ago: float) -> Observed:
    """The Service for clients does not exist, because this body of it was refused."""
    found = observed(service(), engines("ready", "ready"), frontends("ready"))
    gone = {key: child for key, child in found.children.items() if key != KEY}
    refusal = Refusal(Reason.REFUSED, "exceeded quota", body=digest_of(body), at=100.0)
    return replace(found, children=gone, refusals={KEY: refusal}, now=100.0 + seconds_ago)


@pytest.mark.parametrize("terminating", [True, False])
def test_a_name_that_will_be_free_is_awaited(terminating: bool) -> None:
    """A service that is deleted and created again finds the children of the first one."""
    found = observed(service(), engines("ready", "ready"), frontends("ready"))
    old = replace(found.children[KEY], ownership=Ownership.FOREIGN, terminating=terminating)
    facts = replace(found, children={**found.children, KEY: old})
    plan = make_plan(service(), facts, {}, RELEASE, NOON)
    ready = condition(plan.status, "Ready")
    assert ready["reason"] == ("RollingOut" if terminating else "NameTaken")
    assert ("the deletion of Service demo is awaited" in ready["message"]) is terminating
    assert plan.again == BLOCKED_INTERVAL_SECONDS
    assert not plan.applies


@pytest.mark.parametrize(("seconds_ago", "is_held"), [(0, True), (29.9, True), (30, False)])
def test_a_refused_body_is_retried_after_the_interval(seconds_ago: float, is_held: bool) -> None:
    found = plan_applies(desired(), refused(body_of_service(), seconds_ago), 30)
    assert found.held_back == ({KEY} if is_held else set())
    assert [apply.key for apply in found.applies] == ([] if is_held else [KEY])


def test_a_body_changed_after_its_refusal_is_applied_at_once() -> None:
    found = plan_applies(desired(), refused({**body_of_service(), "spec": {}}, 0), 30)
    assert not found.held_back
    assert [apply.key for apply in found.applies] == [KEY]


def test_missing_children_are_created_with_the_desired_bodies() -> None:
    found = plan_applies(desired(), replace(refused(body_of_service(), 30), children={}), 30)
    assert [(apply.body, apply.existing) for apply in found.applies] == [(body, None) for body in desired()]


def test_a_plan_reports_the_children_that_it_holds_back() -> None:
    for seconds_ago, held_back in ((BLOCKED_INTERVAL_SECONDS - 1, {KEY}), (BLOCKED_INTERVAL_SECONDS, set())):
        plan = make_plan(service(), refused(body_of_service(), seconds_ago), {}, RELEASE, NOON)
        assert plan.held_back == held_back
    paused = make_plan(service(paused=True), refused(body_of_service(), 0), {}, RELEASE, NOON)
    assert paused.held_back == {KEY}
    assert not paused.applies


def test_a_digest_does_not_depend_on_the_order_of_fields() -> None:
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1}) != digest_of({"a": 1, "b": 3})
    child: Object = {"metadata": {}}
    assert digest({"a": 1, "b": 2}, child) == digest({"b": 2, "a": 1}, child) != digest({"a": 2, "b": 1}, child)


def applied(*fields: str) -> Object:
    return {"manager": "kvasir-operator", "operation": "Apply", "fieldsV1": {field: {} for field in fields}}


def digest_with(*entries: Object) -> str:
    return digest({"spec": {}}, {"metadata": {"managedFields": list(entries)}})


@pytest.mark.parametrize(
    "entry",
    [
        {**applied("f:spec"), "manager": "kubectl"},
        {**applied("f:spec"), "operation": "Update"},
        {**applied("f:spec"), "subresource": "status"},
    ],
)
def test_a_digest_ignores_fields_that_the_operator_did_not_apply(entry: Object) -> None:
    assert digest_with(applied("f:spec"), entry) == digest_with(applied("f:spec"))


def test_a_digest_changes_if_another_client_takes_a_field() -> None:
    assert digest_with(applied("f:spec")) != digest_with(applied("f:spec", "f:data")) != digest_with()
