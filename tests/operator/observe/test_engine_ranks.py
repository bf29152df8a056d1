from dataclasses import replace

import pytest

from kvasir_operator.observe.engine_ranks import EngineRank, engine_ranks
from kvasir_operator.observe.observed import UNREPORTED_SECONDS, Observed
from kvasir_operator.spec import InferenceService
from operator_facts import engines, member, observed, service


def several(ranks: int = 1, nodes: int = 2) -> InferenceService:
    return service(ranks, engine={"resourceName": "", "tensorParallelSize": nodes, "nodes": nodes})


def rank_of(*pods: str, waited: float = 1.0) -> EngineRank:
    of = several(nodes=len(pods))
    return engine_ranks(of, observed(of, engines(*pods, waited=waited)))[0]


def test_consecutive_pods_are_a_rank() -> None:
    of = several(2, nodes=3)
    first, second = engine_ranks(of, observed(of, engines("ready", "ready", "ready", "-", "ready", "ready")))
    assert (first.number, first.leader, first.missing) == (0, "demo-engine-0", ())
    assert (second.number, second.leader, second.missing) == (1, "demo-engine-3", (3,))
    assert [member.pod.name for member in second.pods] == ["demo-engine-4", "demo-engine-5"]


def test_ranks_without_pods_and_surplus_ranks_are_listed() -> None:
    of = several(2)
    found = engine_ranks(of, observed(of, engines("-", "-", "ready", "ready", "ready")))
    assert [(rank.number, len(rank.pods)) for rank in found] == [(0, 0), (1, 2), (2, 1)]


@pytest.mark.parametrize(
    ("pods", "pod", "phase", "message"),
    [
        (("ready", "ready"), 0, "Ready", ""),
        (("ready", "starting"), 0, "Ready", ""),
        (("loading", "starting"), 0, "Loading", ""),
        (("starting", "loading"), 0, "Starting", ""),
        (("starting", "pulling"), 1, "Pulling", "member 1 of rank 0"),
        (
            ("pending", "pulling"),
            0,
            "Scheduling",
            "rank 0 waits for room for all of its 2 pods: no node accepts the pod",
        ),
        (
            ("loading", "pending"),
            1,
            "Scheduling",
            "rank 0 waits for room for all of its 2 pods: no node accepts the pod",
        ),
        (("loading", "-"), 1, "Scheduling", "member 1 of rank 0: the pod does not exist yet"),
        (("-", "ready"), 0, "Scheduling", "the pod does not exist yet"),
        (("ready", "crashing"), 1, "Failed", "member 1 of rank 0: the container ended with exit code 1"),
        (("crashing", "crashing"), 0, "Failed", "the container ended with exit code 1"),
        (("crashing", "no-image"), 1, "Pulling", "member 1 of rank 0: image x cannot be pulled"),
        (("ready", "lost leaving"), 1, "Failed", "member 1 of rank 0: node node-1 is gone"),
        (("ready", "leaving"), 1, "Draining", "member 1 of rank 0"),
        (("leaving", "leaving", "pulling"), 0, "Draining", ""),
        (("ready", "ready", "no-image"), 2, "Pulling", "member 2 of rank 0: image x cannot be pulled"),
    ],
)
def test_a_rank_has_the_state_of_the_pod_that_it_waits_for(
    pods: tuple[str, ...], pod: int, phase: str, message: str
) -> None:
    state = rank_of(*pods).state
    assert (state.pod, state.phase, state.message) == (f"demo-engine-{pod}", phase, message)


@pytest.mark.parametrize(
    ("pods", "serves"),
    [
        (("ready", "ready"), True),
        (("old ready", "old ready"), True),
        (("ready", "loading"), True),
        (("loading", "ready"), False),
        (("ready", "-"), False),
        (("ready", "leaving"), False),
        (("ready", "crashing"), False),
        (("old ready", "ready"), False),
    ],
)
def test_a_rank_serves_as_a_whole(pods: tuple[str, ...], serves: bool) -> None:
    assert rank_of(*pods).serves is serves


def test_the_frontends_are_connected_to_the_leader() -> None:
    of = several()

    def settled(leader: bool | None, other: bool | None, waited: float) -> bool:
        pods = [member(f"demo-engine-{ordinal}", "ready", waited=waited) for ordinal in range(2)]
        linked = [replace(pod, linked=given) for pod, given in zip(pods, (leader, other), strict=True)]
        return engine_ranks(of, observed(of, linked))[0].is_settled

    assert settled(True, None, 0)
    assert not settled(False, True, 1000)
    assert settled(None, False, UNREPORTED_SECONDS)
    assert not settled(None, False, UNREPORTED_SECONDS - 1)


def test_a_pod_that_cannot_be_created_is_named_with_its_wait() -> None:
    of = several()
    found: Observed = observed(of, engines("loading"), not_created={1: "exceeded quota"}, missing={1: 7.0})
    (rank,) = engine_ranks(of, found)
    assert rank.state.message.startswith("member 1 of rank 0: the pod cannot be created (exceeded quota)")
    assert (rank.state.pod, rank.waited) == ("demo-engine-1", 7.0)
