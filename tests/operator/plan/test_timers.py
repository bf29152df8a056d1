from collections.abc import Sequence
from typing import Any

import pytest

from kvasir_contract.reasons import Reason
from kvasir_operator.cluster.kinds import DISRUPTION_BUDGET
from kvasir_operator.observe.observed import Member, Refusal
from kvasir_operator.plan.lost_pods import LOST_POD_MARGIN_SECONDS
from kvasir_operator.plan.next_look import BLOCKED_INTERVAL_SECONDS, PROGRESS_INTERVAL_SECONDS
from kvasir_operator.plan.plan import Plan, make_plan
from kvasir_operator.spec import InferenceService
from operator_facts import LATER, NOON, RELEASE, SURGE_SECONDS, engines, frontends, observed, service, workload

LEAST, MOST = PROGRESS_INTERVAL_SECONDS
READY = frontends("ready")


def planned(ranks: Sequence[Member], front: Sequence[Member] = READY, ranks_wanted: int = 2, **facts: Any) -> Plan:
    of = service(ranks_wanted, **facts.pop("spec", {}))
    return plan_for(of, ranks, front, **facts)


def plan_for(of: InferenceService, ranks: Sequence[Member], front: Sequence[Member] = READY, **facts: Any) -> Plan:
    return make_plan(of, observed(of, ranks, front, **facts), {}, RELEASE, NOON)


def test_a_service_without_anything_under_way_waits_for_events() -> None:
    assert planned(engines("ready", "ready")).again is None


@pytest.mark.parametrize("words", ["pulling", "starting", "loading", "unready", "no-image", "lost", "refused"])
def test_a_pod_on_its_way_is_looked_at_soon(words: str) -> None:
    """No event reports its progress, or whether its node responds."""
    assert planned(engines("ready", words)).again == LEAST
    assert planned(engines("ready", "ready"), frontends(words)).again == LEAST


@pytest.mark.parametrize(
    ("waited", "again"),
    [(0, LEAST), (10 * LEAST, LEAST), (100, 10), (10 * MOST, MOST), (1_000_000, MOST)],
)
def test_the_progress_interval_grows_with_the_wait(waited: float, again: float) -> None:
    assert planned(engines("loading", "loading", waited=waited)).again == again


def test_the_pod_that_changed_last_sets_the_interval() -> None:
    members = (*engines("loading", waited=1000), *engines("-", "loading", waited=50))
    assert planned(members).again == 5


def test_a_rank_without_a_pod_is_looked_at_like_one_on_its_way() -> None:
    of = service()
    found = observed(of, engines("ready"), READY)
    first = make_plan(of, found, {}, RELEASE, NOON)
    assert first.again == LEAST
    assert make_plan(of, found, first.status, RELEASE, LATER).again == MOST  # five minutes later


def test_a_surge_rank_without_a_pod_is_looked_at() -> None:
    """No event may follow. After a moment, the reason of a quota is read from Events."""
    of = service(1)
    plan = plan_for(of, engines("old ready"), stateful_set=workload(2))
    assert plan.again is not None
    assert plan.again <= BLOCKED_INTERVAL_SECONDS


def test_a_pod_without_room_is_looked_at_like_an_obstacle() -> None:
    of = service(1)
    stuck = plan_for(of, engines("old ready", "pending", waited=SURGE_SECONDS - 1), stateful_set=workload(2))
    assert stuck.again is not None
    assert stuck.again <= BLOCKED_INTERVAL_SECONDS


def test_an_engine_not_accepted_yet_is_looked_at_in_a_rollout() -> None:
    """No event reports that the frontends accept it, and the roll-out waits for that."""
    assert planned(engines("old ready", "ready unlinked")).again == LEAST
    assert planned(engines("ready", "ready unlinked")).again is None


def test_a_draining_pod_is_looked_at_like_an_obstacle() -> None:
    assert planned(engines("ready", "ready", "leaving")).again == BLOCKED_INTERVAL_SECONDS


def test_a_refusal_is_tried_again_after_the_blocked_interval() -> None:
    refusals = {(DISRUPTION_BUDGET, "demo-engine"): Refusal(Reason.REFUSED, "exceeded quota")}
    assert planned(engines("ready", "ready"), refusals=refusals).again == BLOCKED_INTERVAL_SECONDS


def test_a_missing_secret_is_looked_for_after_the_interval() -> None:
    for field in ("apiKeys", "adminApiKeys"):
        spec = {"frontend": {field: {"name": "k"}}}
        plan = planned(engines("ready", "ready"), spec=spec, missing_key_secrets=frozenset({field}))
        assert plan.again == BLOCKED_INTERVAL_SECONDS


def test_a_drained_node_is_looked_at_after_the_blocked_interval() -> None:
    assert planned(engines("ready @b", "ready"), cordoned=frozenset({"a"})).again == BLOCKED_INTERVAL_SECONDS


@pytest.mark.parametrize("kind", ["stateful_set", "deployment"])
def test_a_controller_that_lags_is_looked_at_after_the_interval(kind: str) -> None:
    replicas = {"stateful_set": 2, "deployment": 1}[kind]
    plan = plan_for(service(), engines("ready", "ready"), READY, **{kind: workload(replicas, is_observed=False)})
    assert plan.again == BLOCKED_INTERVAL_SECONDS


def test_a_terminating_namespace_is_not_looked_at_again() -> None:
    refusal = Refusal(Reason.REFUSED, "the namespace is being deleted", namespace_terminating=True)
    plan = planned(engines("ready", "loading"), refusals={(DISRUPTION_BUDGET, "demo-engine"): refusal})
    assert plan.again is None


@pytest.mark.parametrize(("words", "again"), [("ready", None), ("loading", BLOCKED_INTERVAL_SECONDS)])
def test_a_paused_service_is_looked_at_while_pods_move(words: str, again: float | None) -> None:
    assert planned(engines("ready", words), spec={"paused": True}).again == again


def test_a_surge_rank_is_given_up_after_its_patience() -> None:
    of = service(1)

    def deleted(waited: float) -> list[str]:
        ranks = engines("old ready", "pending", waited=waited)
        plan = plan_for(of, ranks, stateful_set=workload(2))
        return [deletion.pod.name for deletion in plan.deletions]

    assert deleted(SURGE_SECONDS - 0.1) == []
    assert deleted(SURGE_SECONDS) == ["demo-engine-0"]


def test_a_pod_of_a_lost_node_is_released_after_the_margin() -> None:
    def released(waited: float) -> list[tuple[str, int | None]]:
        plan = planned(engines("ready", "lost leaving", waited=waited))
        return [(deletion.pod.name, deletion.grace) for deletion in plan.deletions]

    assert released(LOST_POD_MARGIN_SECONDS - 0.1) == []
    assert released(LOST_POD_MARGIN_SECONDS) == [("demo-engine-1", 0)]


def test_a_lost_pod_that_leaves_is_looked_at_soon() -> None:
    assert planned(engines("ready", "lost leaving")).again == LEAST


def test_pods_are_not_deleted_while_their_template_changes() -> None:
    """They could be created again from the previous template, so the workload is written first."""
    of = service()
    found = observed(of, engines("old ready", "old ready"), READY)
    changed = service(engine={"maxNumSeqs": 8}, rollout={"maxSurge": 0})
    plan = make_plan(changed, found, {}, RELEASE, NOON)
    assert "StatefulSet" in {apply.key[0].kind for apply in plan.applies}
    assert plan.deletions == ()
    same = service(rollout={"maxSurge": 0})
    written = plan_for(same, engines("old ready", "old ready"))
    assert [deletion.pod.name for deletion in written.deletions] == ["demo-engine-1"]
