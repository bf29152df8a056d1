"""The whole plan of each situation, as text. KVASIR_UPDATE_GOLDEN=1 rewrites the files: review the difference."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_contract.status_report import ReportedDemand, StatusReport
from kvasir_operator.cluster.kinds import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    HTTP_ROUTE,
    NETWORK_POLICY,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
)
from kvasir_operator.observe.observed import Member, Observed, Ownership, Refusal
from kvasir_operator.plan.conditions import condition
from kvasir_operator.plan.plan import Plan, make_plan
from kvasir_operator.plan.text import render
from kvasir_operator.plan.waiting_ranks import MIN_OBSERVED_SECONDS
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService
from operator_facts import (
    LATER,
    NEWER,
    NOON,
    RELEASE,
    engines,
    existing,
    frontends,
    observed,
    owned_by,
    service,
    workload,
)

GOLDEN: Final = Path(__file__).parent / "golden"

Situation = tuple[InferenceService, Observed, dict[str, Any], Release]


def nothing_exists() -> Situation:
    return service(), Observed(generation=1, asked_release=""), {}, RELEASE


def keys_exist() -> Situation:
    found = Observed(generation=1, asked_release="", link_secret="demo-link-abc", link_secret_exists=True)
    return service(), found, {}, RELEASE


def first_start() -> Situation:
    of = service()
    return of, observed(of, engines("loading", "pulling"), frontends("starting")), {}, RELEASE


def all_is_well() -> Situation:
    of = service()
    return of, observed(of, engines("ready", "ready"), frontends("ready")), {}, RELEASE


def template_changed() -> Situation:
    of = service()
    found = observed(of, engines("ready", "ready"), frontends("ready"))
    return service(engine={"maxNumSeqs": 8}), found, {}, RELEASE


def adapter_added() -> Situation:
    of = service(model={"source": "demo://", "loraAdapters": []})
    found = observed(of, engines("ready", "ready"), frontends("ready"))
    adapters = [{"name": "sql", "source": "hf://org/sql-lora"}]
    return service(model={"source": "demo://", "loraAdapters": adapters}), found, {}, RELEASE


def template_changed_and_not_seen_yet() -> Situation:
    of = service()
    unseen = workload(2, is_observed=False)
    return of, observed(of, engines("ready", "ready"), frontends("ready"), stateful_set=unseen), {}, RELEASE


def rollout_with_surge() -> Situation:
    of = service(1)
    found = observed(of, engines("old ready", "ready"), frontends("ready"), stateful_set=workload(2))
    return of, found, {}, RELEASE


def rollout_without_room() -> Situation:
    of = service(1)
    sts = workload(2)
    found = observed(of, engines("old ready", "pending", waited=31), frontends("ready"), stateful_set=sts)
    return of, found, {}, RELEASE


def node_is_drained() -> Situation:
    of = service(1)
    found = observed(
        of,
        engines("ready @a", "ready @b"),
        frontends("ready @a", "ready @b"),
        stateful_set=workload(2),
        deployment=workload(2),
        cordoned=frozenset({"a"}),
    )
    return of, found, {}, RELEASE


def node_is_lost() -> Situation:
    of = service()
    return of, observed(of, engines("ready", "lost leaving", waited=6), frontends("ready")), {}, RELEASE


def pod_of_a_rank_is_lost() -> Situation:
    of = service(2, engine={"tensorParallelSize": 2, "nodes": 2})
    ranks = engines("ready", "ready", "starting", "lost leaving @b", waited=6)
    return of, observed(of, ranks, frontends("ready")), {}, RELEASE


def rollout_of_ranks_with_several_pods() -> Situation:
    of = service(2, engine={"tensorParallelSize": 2, "nodes": 2})
    ranks = engines("old ready", "old ready", "old ready", "old ready", "ready", "ready")
    found = observed(of, ranks, frontends("ready"), stateful_set=workload(6))
    return of, found, {}, RELEASE


def rank_waits_for_room() -> Situation:
    of = service(2, engine={"resourceName": "", "tensorParallelSize": 2, "nodes": 2})
    ranks = engines("ready", "ready", "starting", "pending", waited=MIN_OBSERVED_SECONDS)
    held = [replace(rank, pod=replace(rank.pod, scheduling_changed="2026-11-21T11:30:00Z")) for rank in ranks]
    return of, observed(of, held, frontends("ready")), {}, RELEASE


def cache_was_added() -> Situation:
    of = service(model={"source": "hf://org/name"})
    found = observed(of, engines("ready", "ready"), frontends("ready"))
    return service(model={"source": "hf://org/name", "cache": {"size": "1Gi"}}), found, {}, RELEASE


def child_is_refused() -> Situation:
    of = service()
    found = observed(of, engines("ready", "ready"), frontends("ready"))
    children = {key: child for key, child in found.children.items() if key[0] is not DISRUPTION_BUDGET}
    refusal = Refusal(Reason.REFUSED, "the API server refuses PodDisruptionBudget demo-engine: exceeded quota")
    key = DISRUPTION_BUDGET, "demo-engine"
    return of, replace(found, children=children, refusals={key: refusal}), {}, RELEASE


def account_is_foreign() -> Situation:
    of = service()
    found = Observed(generation=1, asked_release="", link_secret="demo-link-abc", link_secret_exists=True)
    key = SERVICE_ACCOUNT, "demo"
    account = existing(of, RELEASE, {})[key]
    return of, replace(found, children={key: owned_by(account, Ownership.FOREIGN)}), {}, RELEASE


def service_was_orphaned() -> Situation:
    of = service()
    found = observed(of, stateful_set=None, deployment=None)
    children = {key: owned_by(child, Ownership.ORPHAN) for key, child in found.children.items()}
    for child in children.values():
        del child.object["metadata"]["ownerReferences"]
    return of, replace(found, children=children, unchanged={}), {}, RELEASE


def policies_switched_off() -> Situation:
    of = service()
    found = observed(of, engines("ready", "ready"), frontends("ready"))
    return service(network={"policy": False}), found, {}, RELEASE


def expose_was_added() -> Situation:
    of = service()
    found = observed(of, engines("ready", "ready"), frontends("ready"))
    return service(expose={"host": "llm.example.com", "tls": {}}), found, {}, RELEASE


def gateway_api_is_missing() -> Situation:
    of = service()
    found = observed(of, engines("ready", "ready"), frontends("ready"), missing_kinds=frozenset({HTTP_ROUTE}))
    gateway = {"name": "public", "namespace": "infra"}
    return service(expose={"host": "llm.example.com", "gateway": gateway}), found, {}, RELEASE


def operator_was_upgraded() -> Situation:
    of = service()
    return of, observed(of, engines("ready", "ready"), frontends("ready")), {}, NEWER


def upgrade_was_asked_for() -> Situation:
    of = service()
    found = observed(of, engines("ready", "ready"), frontends("ready"), asked_release=NEWER.id)
    return of, found, {}, NEWER


def paused() -> Situation:
    of = service()
    found = observed(of, engines("old ready", "ready"), frontends("ready"))
    return service(paused=True, engine={"maxNumSeqs": 8}), found, {}, RELEASE


def link_keys_deleted() -> Situation:
    of = service()
    found = observed(of, engines("ready", "ready"), frontends("ready"), link_secret_exists=False)
    return of, found, {}, RELEASE


def at_zero_or_not(replicas: int, *, closed: bool, live: int = 0, ranks: tuple[Member, ...] = ()) -> Situation:
    """Return a service that may go to zero, with an idle frontend or one with `live` requests."""
    of = service(autoscaling={"minRanks": 0, "toZeroAfter": "1m"})
    demand = ReportedDemand(closed, 0.0 if live else 70.0, 500.0 if ranks else None)
    (front,) = frontends("ready")
    front = replace(front, report=StatusReport(Phase.READY, live_requests=live, demand=demand))
    return of, observed(of, ranks, [front], stateful_set=workload(replicas)), {}, RELEASE


def gates_are_closed_first() -> Situation:
    return at_zero_or_not(2, closed=False, ranks=engines("ready", "ready"))


def engines_are_removed() -> Situation:
    return at_zero_or_not(2, closed=True, ranks=engines("ready", "ready"))


def service_is_at_zero() -> Situation:
    return at_zero_or_not(0, closed=True)


def request_came_at_zero() -> Situation:
    return at_zero_or_not(0, closed=True, live=1)


SITUATIONS: Final[list[Callable[[], Situation]]] = [
    nothing_exists,
    keys_exist,
    first_start,
    cache_was_added,
    all_is_well,
    template_changed,
    adapter_added,
    template_changed_and_not_seen_yet,
    rollout_with_surge,
    rollout_without_room,
    node_is_drained,
    node_is_lost,
    pod_of_a_rank_is_lost,
    rank_waits_for_room,
    gates_are_closed_first,
    expose_was_added,
    gateway_api_is_missing,
    engines_are_removed,
    service_is_at_zero,
    request_came_at_zero,
    rollout_of_ranks_with_several_pods,
    child_is_refused,
    account_is_foreign,
    service_was_orphaned,
    policies_switched_off,
    operator_was_upgraded,
    upgrade_was_asked_for,
    paused,
    link_keys_deleted,
]


def plan_of(situation: Callable[[], Situation]) -> Plan:
    of, found, previous, release = situation()
    return make_plan(of, found, previous, release, NOON)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.__name__)
def test_the_plan_is_that_of_the_golden_file(situation: Callable[[], Situation]) -> None:
    text = render(plan_of(situation))
    file = GOLDEN / f"{situation.__name__}.txt"
    if os.environ.get("KVASIR_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.__name__)
def test_the_same_facts_give_the_same_plan(situation: Callable[[], Situation]) -> None:
    """Times are kept while nothing changes, so an unchanged status is not written again.

    Only a failure that lasts changes Stalled, once.
    """
    of, found, previous, release = situation()
    first = make_plan(of, found, previous, release, NOON)
    second = make_plan(of, found, first.status, release, LATER)
    assert second.status == first.status or condition(first.status, "Stalled")["status"] == "Unknown"
    assert make_plan(of, found, second.status, release, LATER + (LATER - NOON)).status == second.status
    assert render(plan_of(situation)) == render(plan_of(situation))


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == {situation.__name__ for situation in SITUATIONS}


def test_foreign_objects_are_neither_written_nor_deleted() -> None:
    of = service()
    found = observed(of, engines("ready", "ready"), frontends("ready"))
    children = {key: owned_by(child, Ownership.FOREIGN) for key, child in found.children.items()}
    plan = make_plan(of, replace(found, children=children, unchanged={}), {}, RELEASE, NOON)
    assert (plan.applies, plan.prunes) == ((), ())
    assert "url" not in plan.status


@pytest.mark.parametrize(
    ("situation", "is_available"),
    [(all_is_well, False), (operator_was_upgraded, True), (upgrade_was_asked_for, False)],
)
def test_an_upgrade_is_available_until_it_was_asked_for(
    situation: Callable[[], Situation], is_available: bool
) -> None:
    assert plan_of(situation).upgrade_available is is_available


@pytest.mark.parametrize("exists", [True, False])
def test_a_refused_secret_is_a_problem_while_keys_are_missing(exists: bool) -> None:
    of = service()
    refusals = {(SECRET, "demo-link"): Refusal(Reason.REFUSED, "exceeded quota")}
    found = observed(
        of, engines("ready", "ready"), frontends("ready"), link_secret_exists=exists, refusals=refusals
    )
    ready = condition(make_plan(of, found, {}, RELEASE, NOON).status, "Ready")
    assert ("exceeded quota" in ready["message"]) is not exists


def test_a_terminating_namespace_ends_the_retries() -> None:
    of = service()
    found = observed(of, engines("ready", "ready"), frontends("ready"))
    going = Refusal(Reason.REFUSED, "the namespace is being deleted", namespace_terminating=True)
    gone = {key: child for key, child in found.children.items() if key[0] is not SERVICE}
    plan = make_plan(of, replace(found, children=gone, refusals={(SERVICE, "demo"): going}), {}, RELEASE, NOON)
    assert (plan.applies, plan.deletions, plan.again) == ((), (), None)


def test_only_the_network_policies_depend_on_network_policy() -> None:
    of, found, previous, release = policies_switched_off()
    plan = make_plan(of, found, previous, release, NOON)
    assert {key[0] for key, _ in plan.prunes} == {NETWORK_POLICY}
    assert not [apply.key for apply in plan.applies if apply.key[0] in (STATEFUL_SET, DEPLOYMENT)]
