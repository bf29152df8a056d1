from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kvasir_operator.observe.engine_ranks import engine_ranks
from kvasir_operator.observe.observed import Member
from kvasir_operator.plan.plan import TIME_FORMAT, make_plan
from kvasir_operator.plan.waiting_ranks import (
    MAX_HOLD_SECONDS,
    MIN_HOLD_SECONDS,
    MIN_OBSERVED_SECONDS,
    give_room_back,
)
from kvasir_operator.spec import InferenceService
from operator_facts import NOON, RELEASE, engines, frontends, observed, service
from status_facts import message

HELD = 1.5 * MIN_HOLD_SECONDS
"""Long enough for every service."""
REQUESTS = {"pod": {"resources": {"requests": {"memory": "4Gi"}}}}


def several(ranks: int = 1, engine: dict[str, Any] = REQUESTS, **spec: Any) -> InferenceService:
    return service(ranks, engine={"tensorParallelSize": 2, "nodes": 2, **engine}, **spec)


def pods(*words: str, held: Sequence[float] | float = HELD, waited: float = 1000.0) -> tuple[Member, ...]:
    """Return engine pods that were created or placed `held` seconds ago."""
    ages = [held] * len(words) if isinstance(held, float) else held
    return tuple(
        replace(member, pod=replace(member.pod, scheduling_changed=time_before(ages[member.pod.ordinal])))
        for member in engines(*words, waited=waited)
    )


def time_before(seconds: float) -> str:
    return (NOON - timedelta(seconds=seconds)).strftime(TIME_FORMAT)


def given_back(of: InferenceService, members: tuple[Member, ...], unready: float = 0.0, **facts: Any) -> list[int]:
    """Return the ordinals of deleted pods. Engines of the service have not been ready for `unready` seconds."""
    ready = {"type": "EnginesReady", "status": "False", "lastTransitionTime": time_before(unready)}
    found = observed(of, members, **facts)
    deletions = give_room_back(of, found, engine_ranks(of, found), {"conditions": [ready]}, NOON)
    return sorted(deletion.pod.ordinal for deletion in deletions)


@pytest.mark.parametrize(
    ("words", "deleted"),
    [
        (("starting", "pending"), [0, 1]),
        (("pending", "starting"), [0, 1]),
        (("crashing", "pending"), [0, 1]),
        (("pulling", "pending"), [0, 1]),
        (("pending", "pending"), []),
        (("ready", "ready"), []),
        (("starting", "pulling"), []),
        (("starting", "-"), []),
        (("leaving", "pending"), []),
        (("starting", "pending leaving"), []),
    ],
)
def test_a_rank_that_holds_room_in_vain_gives_it_back(words: tuple[str, ...], deleted: list[int]) -> None:
    """The pod without a node is deleted too: it would otherwise take the room again."""
    assert given_back(several(), pods(*words)) == deleted


def test_a_rank_holds_room_for_a_while() -> None:
    """A node that an autoscaler has ordered may still come."""
    words = ("starting", "pending")
    assert given_back(several(), pods(*words, held=MIN_HOLD_SECONDS - 1)) == []
    assert given_back(several(), pods(*words, held=[1.0, HELD])) == []
    assert given_back(several(), pods(*words, held=[HELD, 1.0])) == []


def test_a_pod_that_a_quota_forbids_needs_room_too() -> None:
    of, members = several(), pods("starting")
    facts: dict[str, Any] = {"not_created": {1: "exceeded quota"}}
    assert given_back(of, members, missing={1: MIN_OBSERVED_SECONDS}, **facts) == [0]
    assert given_back(of, members, missing={1: MIN_OBSERVED_SECONDS - 1}, **facts) == []


def test_the_time_between_two_deletions_grows_up_to_a_limit() -> None:
    """The status keeps the start of the wait, so another operator goes on with the same interval."""
    of, words = several(), ("starting", "pending")
    long = 4 * MIN_HOLD_SECONDS
    assert given_back(of, pods(*words, held=long / 2 - 1), unready=long) == []
    assert given_back(of, pods(*words, held=0.75 * long), unready=long) == [0, 1]
    for_ever = 100 * MAX_HOLD_SECONDS
    assert given_back(of, pods(*words, held=MAX_HOLD_SECONDS - 1), unready=for_ever) == []
    assert given_back(of, pods(*words, held=1.5 * MAX_HOLD_SECONDS), unready=for_ever) == [0, 1]


def test_two_services_do_not_give_back_at_the_same_times() -> None:
    one = several()
    other = replace(one, uid="uid-2")
    members = [pods("starting", "pending", held=float(seconds)) for seconds in range(0, int(HELD) + 1, 10)]
    first = [next(number for number, held in enumerate(members) if given_back(of, held)) for of in (one, other)]
    assert abs(first[0] - first[1]) * 10 >= MIN_OBSERVED_SECONDS


def test_a_wrong_clock_does_not_delete_again_and_again() -> None:
    words = ("starting", "pending")
    assert given_back(several(), pods(*words, held=1e6, waited=MIN_OBSERVED_SECONDS - 1)) == []
    assert given_back(several(), pods(*words, held=1e6, waited=MIN_OBSERVED_SECONDS)) == [0, 1]


def test_one_rank_gives_back_and_the_others_take_its_room() -> None:
    """All of them would otherwise take each other's room again."""
    of, words = several(2), ("starting", "pending", "pending", "starting")
    assert given_back(of, pods(*words)) == [2, 3]
    assert given_back(of, pods("starting", "pending", "pending", "pending")) == [0, 1]
    fresh = pods("starting", "pending", "pending", "pending", held=[HELD, HELD, 1.0, 1.0])
    assert given_back(of, fresh) == []
    assert given_back(of, pods("starting", "pending", "leaving", held=[HELD, HELD, HELD])) == []
    assert given_back(of, pods("starting", "pending", "ready", "ready", held=[HELD, HELD, 1.0, 1.0])) == [0, 1]


def test_pods_of_one_node_each_hold_no_room_in_vain() -> None:
    assert given_back(several(engine={"tensorParallelSize": 1, "nodes": 1}), pods("starting", "pending")) == []


@pytest.mark.parametrize(("paused", "deleted"), [(False, 2), (True, 0)])
def test_the_plan_says_what_the_rank_waits_for(paused: bool, deleted: int) -> None:
    of = several(paused=paused)
    plan = make_plan(of, observed(of, pods("starting", "pending"), frontends("ready")), {}, RELEASE, NOON)
    assert len(plan.deletions) == deleted
    assert "pod demo-engine-1: rank 0 waits for room for all of its 2 pods: no node" in message(
        plan.status, "EnginesReady"
    )
    for deletion in plan.deletions:
        assert (deletion.event, deletion.grace) == ("GivingRoomBack", None)
        assert deletion.why.endswith("gives its place back, because rank 0 waits for room for all of its 2 pods")
