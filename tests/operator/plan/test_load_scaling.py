from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kvasir_contract.phases import Phase
from kvasir_contract.status_report import ReportedLoad, StatusReport
from kvasir_operator.autoscaler.load_history import STALE_SECONDS, Entry, LoadHistory
from kvasir_operator.cluster.kinds import STATEFUL_SET
from kvasir_operator.observe.observed import Member, Observed, RequestedRanks, WorkloadState
from kvasir_operator.plan.conditions import condition
from kvasir_operator.plan.plan import Plan, make_plan
from kvasir_operator.resources.names import RANKS_ANNOTATION
from kvasir_operator.spec import InferenceService
from operator_facts import NOON, RELEASE, engines, frontends, observed, service, workload

BY_LOAD = {"minRanks": 1, "maxRanks": 4, "targets": {"queueSeconds": 2}}
NOW = 1000.0
MISSED = "requests wait 9.0 s for an engine (target 2 s)"
LOAD = ReportedLoad(30.0, 2, 10, 10, 0, 4, 0.0, 0.1, 0.1)


def by_load(ranks: int = 2, **spec: Any) -> InferenceService:
    return service(ranks, **{"autoscaling": BY_LOAD, **spec})


def history(recommended: int, seconds: float = 400.0, **facts: Any) -> LoadHistory:
    """Return one that has recommended this number until now."""
    missed = (MISSED,) if recommended > 2 else ()
    return LoadHistory((Entry(NOW - seconds, 2, recommended), Entry(NOW, 2, recommended, missed)), **facts)


def facts_of(
    of: InferenceService,
    load: LoadHistory,
    stateful_set: WorkloadState | None = None,
    front: Sequence[Member] = frontends("ready"),
    **facts: Any,
) -> Observed:
    size = stateful_set or workload(2, ranks=2)
    ranks = engines(*["ready"] * size.replicas)
    return observed(of, ranks, front, stateful_set=size, load=load, now=NOW, **facts)


def planned(of: InferenceService, facts: Observed, previous: dict[str, Any] | None = None) -> Plan:
    return make_plan(of, facts, previous or {}, RELEASE, NOON)


def size_of(plan: Plan) -> tuple[int, str] | None:
    """Return the replicas and the annotation that are applied, or None."""
    bodies = [apply.body for apply in plan.applies if apply.key[0] is STATEFUL_SET]
    return next(
        ((body["spec"]["replicas"], body["metadata"]["annotations"][RANKS_ANNOTATION]) for body in bodies), None
    )


def scaling(plan: Plan) -> tuple[str, str, str]:
    found = condition(plan.status, "ScalingActive")
    return found["status"], found["reason"], found["message"]


@pytest.mark.parametrize(("recommended", "ranks"), [(3, 3), (9, 4), (1, 1), (2, 2)])
def test_the_load_sets_size_and_annotation_together(recommended: int, ranks: int) -> None:
    of = by_load()
    plan = planned(of, facts_of(of, history(recommended)))
    assert size_of(plan) == (ranks, str(ranks))
    assert plan.status["engines"]["desired"] == ranks
    assert bool(plan.scaling.change) == (ranks != 2)


def test_the_event_names_the_missed_target() -> None:
    of = by_load()
    assert planned(of, facts_of(of, history(3))).scaling.change == f"3 engines instead of 2: {MISSED}"
    why = "1 engine instead of 2: no target was missed for 300 s"
    assert planned(of, facts_of(of, history(1))).scaling.change == why


def test_the_annotation_rules_without_a_load() -> None:
    of = by_load(1)
    plan = planned(of, facts_of(of, LoadHistory(), workload(3, ranks=3)))
    assert (size_of(plan), plan.scaling.change) == ((3, "3"), "")


def test_a_surge_rank_is_not_taken_for_the_load() -> None:
    of = by_load(1)
    facts = facts_of(of, LoadHistory(), workload(3, ranks=2))
    facts = facts.with_changes(engines=engines("old ready", "ready", "ready"))
    assert size_of(planned(of, facts, {"rollout": {"surgeFrom": 2}})) == (3, "2")


def test_a_service_starts_with_data_parallel_size() -> None:
    of = by_load(3)
    assert size_of(planned(of, facts_of(of, LoadHistory(), workload(3)))) == (3, "3")
    assert planned(of, observed(of, stateful_set=None, load=LoadHistory())).scaling.ranks == 3
    woken = by_load(3, autoscaling={**BY_LOAD, "minRanks": 0, "toZeroAfter": "1m"})
    assert planned(woken, facts_of(woken, history(4), workload(0, ranks=4))).scaling.ranks == 3


def test_an_ignored_scale_does_not_count_at_the_next_start() -> None:
    of = by_load(4, autoscaling={**BY_LOAD, "minRanks": 0, "toZeroAfter": "1m"})
    facts = facts_of(of, history(2), workload(0), requested=RequestedRanks(4, "kube-controller-manager"))
    assert planned(of, facts, {"autoscaling": {"firstRanks": 1}}).scaling.ranks == 1


def test_without_targets_nothing_is_annotated() -> None:
    of = service(2, autoscaling={"minRanks": 1, "maxRanks": 4})
    plan = planned(of, facts_of(of, history(4), workload(2)))
    assert (plan.applies, condition(plan.status, "ScalingActive")) == ((), {})


def test_a_paused_service_keeps_its_size() -> None:
    of = by_load(paused=True)
    plan = planned(of, facts_of(of, history(4)))
    assert (plan.applies, plan.status["engines"]["desired"], plan.scaling.change) == ((), 2, "")


def test_only_serving_frontends_are_polled() -> None:
    of = by_load(frontends=2)
    front = frontends("ready", "starting", "leaving")
    assert [pod.name for pod in planned(of, facts_of(of, history(2), front=front)).scaling.frontends] == [
        "demo-frontend-a"
    ]


def test_what_was_learned_is_in_the_status() -> None:
    of = by_load()
    facts = facts_of(of, history(2, requests_per_rank=7.66), requested=RequestedRanks(2))
    assert planned(of, facts).status["autoscaling"] == {"requestsPerRank": 7.7, "firstRanks": 2}


# ---------------------------------------------------------------------------------------------------- the condition


def test_the_condition_names_the_range() -> None:
    of = by_load()
    found = scaling(planned(of, facts_of(of, history(2))))
    assert found == ("True", "AsDesired", "the load decides on the number of engines, from 1 to 4")


def test_the_condition_says_that_max_ranks_limits() -> None:
    of = by_load()
    status, reason, message = scaling(planned(of, facts_of(of, history(9), workload(4, ranks=4))))
    assert (status, reason) == ("True", "AtMaxRanks")
    assert "autoscaling.maxRanks (4)" in message


def test_the_condition_names_frontends_without_load() -> None:
    of = by_load(frontends=2)
    members = frontends("ready", "ready")
    front = [replace(members[0], report=StatusReport(Phase.READY, load=LOAD)), members[1]]
    late = LoadHistory(since=NOW - STALE_SECONDS - 1)
    status, reason, message = scaling(planned(of, facts_of(of, late, front=front)))
    assert (status, reason) == ("False", "LoadUnknown")
    assert "no load from demo-frontend-b:" in message
    assert scaling(planned(of, facts_of(of, LoadHistory(since=NOW))))[0] == "True"


@pytest.mark.parametrize(
    ("manager", "words"),
    [
        ("kube-controller-manager", ("(a HorizontalPodAutoscaler)", "delete that HorizontalPodAutoscaler")),
        ("kubectl", ("kubectl has set", "change minRanks and maxRanks")),
    ],
)
def test_the_condition_names_who_scales_in_vain(manager: str, words: tuple[str, str]) -> None:
    of = by_load()

    def after(previous: dict[str, Any], requested: RequestedRanks) -> Plan:
        return planned(of, facts_of(of, history(2), requested=requested), previous)

    first = after({}, RequestedRanks(2)).status
    status, reason, message = scaling(after(first, RequestedRanks(7, manager)))
    assert (status, reason) == ("True", "ScaleIgnored")
    assert "engine.dataParallelSize to 7" in message
    assert all(word in message for word in words)
    again = after(first, RequestedRanks(7, manager)).status
    assert scaling(after(again, RequestedRanks(7, manager)))[1] == "ScaleIgnored"
    assert scaling(after(again, RequestedRanks(2, manager)))[1] == "AsDesired"  # set back
    assert scaling(after(again, RequestedRanks(0, manager)))[1] == "AsDesired"
    assert scaling(after(again, RequestedRanks(4)))[1] == "AsDesired"  # by an edit of the spec
    assert scaling(after({}, RequestedRanks(7, manager)))[1] == "AsDesired"  # before the targets were set
