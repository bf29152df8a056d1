from dataclasses import replace
from typing import Any

import pytest

from kvasir_operator.observe.engine_ranks import engine_ranks
from kvasir_operator.observe.observed import Member, Observed
from kvasir_operator.plan.engine_rollout import PodDeletion
from kvasir_operator.plan.lost_pods import REJOIN_SECONDS, regroup
from kvasir_operator.plan.plan import make_plan
from kvasir_operator.spec import InferenceService
from operator_facts import NOON, RELEASE, engines, frontends, observed, service, workload

THREE = {"resourceName": "", "tensorParallelSize": 3, "nodes": 3}


def deletions(of: InferenceService, found: Observed) -> tuple[PodDeletion, ...]:
    return regroup(of, found, engine_ranks(of, found))


def regrouped(members: tuple[Member, ...], **facts: Any) -> list[int]:
    of = service(1, engine=THREE)
    return sorted(deletion.pod.ordinal for deletion in deletions(of, observed(of, members, **facts)))


def since(waited: float, *pods: str) -> tuple[Member, ...]:
    return engines(*pods, waited=waited)


LONG = REJOIN_SECONDS


@pytest.mark.parametrize(
    ("pods", "deleted"),
    [
        (("ready", "ready", "ready"), []),
        (("ready", "starting", "starting"), []),
        (("loading", "loading", "starting"), []),
        (("starting", "starting", "starting"), []),
        (("unready", "unready", "starting"), [0, 1]),
        (("starting", "ready", "ready"), [1, 2]),
        (("unready", "starting", "starting"), [0]),
        (("unready", "ready", "loading"), [0, 1]),
        (("loading", "ready", "loading"), []),
        (("loading", "ready", "starting"), []),
        (("starting", "ready", "loading"), [1]),
        (("unready", "starting", "pulling"), []),
        (("unready", "starting", "pending"), []),
        (("unready", "starting", "no-image"), []),
        (("unready", "ready", "lost leaving"), [0, 1]),
        (("unready", "ready", "lost"), []),
        (("leaving", "ready", "lost leaving"), [1]),
        (("unready", "ready", "leaving"), []),
        (("crashing", "ready", "ready"), []),
    ],
)
def test_pods_that_do_not_notice_a_loss_are_deleted(pods: tuple[str, ...], deleted: list[int]) -> None:
    assert regrouped(since(LONG, *pods)) == deleted
    assert regrouped(since(LONG - 1, *pods)) == []


@pytest.mark.parametrize(("seconds", "deleted"), [(LONG - 1, []), (LONG, [0, 2])])
def test_pods_do_not_wait_for_a_missing_one_for_ever(seconds: float, deleted: list[int]) -> None:
    assert regrouped(since(1, "ready", "-", "ready"), missing={1: seconds}) == deleted


@pytest.mark.parametrize("pods", [("starting", "ready", "ready"), ("unready", "starting", "ready")])
def test_a_pod_without_reports_may_be_as_far_as_the_others(pods: tuple[str, ...]) -> None:
    """An operator that may not connect to the pods would otherwise delete the members of each engine that loads."""
    assert regrouped(tuple(replace(member, reported=False) for member in since(LONG, *pods))) == []


def test_pods_of_other_ranks_stay() -> None:
    of = service(2, engine=THREE)
    found = observed(of, engines("ready", "ready", "-", "ready", "ready", "ready"), missing={2: LONG})
    assert sorted(deletion.pod.ordinal for deletion in deletions(of, found)) == [0, 1]


def test_a_rank_of_one_pod_has_no_others() -> None:
    of = service(2)
    assert deletions(of, observed(of, engines("starting", "ready", waited=LONG))) == ()


def test_a_pod_is_deleted_once() -> None:
    """Its rank is outdated, and another pod of it is gone."""
    of = service(1, engine=THREE)
    pods = engines("old unready", "-", "old ready")
    found = observed(of, pods, frontends("ready"), missing={1: LONG}, stateful_set=workload(3))
    plan = make_plan(of, found, {}, RELEASE, NOON)
    assert [deletion.pod.ordinal for deletion in plan.deletions] == [0, 2]
    assert {deletion.event for deletion in plan.deletions} == {"Replacing"}


def test_the_deletion_names_the_pod_that_is_gone() -> None:
    of = service(1, engine=THREE)
    (deletion,) = deletions(of, observed(of, engines("unready", "starting", "starting", waited=LONG)))
    assert (deletion.event, deletion.grace) == ("Regrouping", None)
    assert deletion.why == "pod demo-engine-0 does not notice that pod demo-engine-1 is gone"


def test_a_lost_pod_is_looked_at_until_the_others_are_deleted() -> None:
    of = service(1, engine=THREE)
    found = observed(of, engines("ready", "-", "ready"), frontends("ready"), missing={1: 1.0})
    again = make_plan(of, found, {}, RELEASE, NOON).again
    assert again is not None
    assert again <= LONG
