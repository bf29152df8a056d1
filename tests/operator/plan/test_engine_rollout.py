from typing import Any

import pytest

from kvasir_operator.observe.engine_ranks import engine_ranks
from kvasir_operator.observe.observed import Observed
from kvasir_operator.plan.engine_rollout import EngineRollout, roll_engines
from kvasir_operator.plan.lost_pods import LOST_POD_MARGIN_SECONDS, release_lost
from kvasir_operator.spec import InferenceService
from operator_facts import SURGE_SECONDS, engines, observed, service, workload

NO_SURGE = {"maxSurge": 0, "maxUnavailable": 1}


def roll(of: InferenceService, facts: Observed, memo: dict[str, Any]) -> EngineRollout:
    return roll_engines(of, facts, engine_ranks(of, facts), memo)


def rolled(
    *ranks: str,
    desired: int | None = None,
    replicas: int | None = None,
    rollout: dict[str, Any] | None = None,
    refused: str = "",
    waited: float = 1.0,
    **facts: Any,
) -> tuple[int, list[int], str]:
    """Return replicas, ranks to delete, and the revision without surge."""
    of = service(desired or len(ranks), rollout=rollout or {})
    sts = facts.pop("stateful_set", workload(replicas if replicas is not None else len(ranks)))
    size = desired or len(ranks)
    memo: dict[str, Any] = {"surgeRefused": refused} if refused else {}
    if facts.pop("surging", sts is not None and sts.replicas > size):
        memo["surgeFrom"] = size
    found = roll(of, observed(of, engines(*ranks, waited=waited), stateful_set=sts, **facts), memo)
    return found.ranks, sorted(deletion.pod.ordinal for deletion in found.deletions), found.surge_refused


@pytest.mark.parametrize(
    ("ranks", "replaced"),
    [
        ("ready, ready, ready", []),
        ("old ready, old ready, old ready", [2]),
        ("old ready, old ready, ready", [1]),
        ("old ready, old ready, starting", []),
        ("old ready, old ready, leaving", []),
        ("old ready, old ready, -", []),
        ("old ready, old unready, old ready", [1]),
        ("old unready, old unready, old unready", [2]),
        ("old crashing, old no-image, old pending", [0, 1, 2]),
        ("old refused, old refused, old ready", [0, 1, 2]),
        ("old unready, starting, old ready", []),
        ("old ready", [0]),
    ],
)
def test_ranks_replaced_without_surge(ranks: str, replaced: list[int]) -> None:
    words = ranks.split(", ")
    assert rolled(*words, rollout=NO_SURGE) == (len(words), replaced, "")


@pytest.mark.parametrize("waited", [SURGE_SECONDS, 100 * SURGE_SECONDS])
def test_a_surge_rank_is_kept_while_its_node_is_added(waited: float) -> None:
    assert rolled("old ready", "node-comes", desired=1, replicas=2, waited=waited) == (2, [], "")


@pytest.mark.parametrize(("waited", "expected"), [(299.0, (2, [], "")), (300.0, (1, [0], "new"))])
def test_the_surge_timeout_is_a_field(waited: float, expected: tuple[int, list[int], str]) -> None:
    ranks = ("old ready", "pending")
    found = rolled(*ranks, desired=1, replicas=2, waited=waited, rollout={"surgeTimeout": "5m"})
    assert found == expected


def test_unready_old_ranks_are_bounded_by_max_unavailable() -> None:
    """Under load, ranks are sometimes not ready for a moment and recover by themselves."""
    words = ["old unready"] * 4
    assert rolled(*words, rollout={"maxSurge": 0, "maxUnavailable": 2})[1] == [2, 3]


@pytest.mark.parametrize(
    ("ranks", "replicas", "expected"),
    [
        (["old ready"], 1, (2, [], "")),
        (["old ready", "pulling"], 2, (2, [], "")),
        (["old ready", "loading"], 2, (2, [], "")),
        (["old ready", "crashing"], 2, (2, [], "")),
        (["old ready", "ready"], 2, (2, [0], "")),
        (["leaving", "ready"], 2, (2, [], "")),
        (["-", "ready"], 2, (2, [], "")),
        (["loading", "ready"], 2, (2, [], "")),
        (["ready", "ready"], 2, (1, [], "")),
        (["ready", "leaving"], 1, (1, [], "")),
        (["old unready"], 1, (2, [], "")),
        (["old crashing"], 1, (1, [0], "")),
    ],
)
def test_one_rank_is_replaced_once_its_surge_rank_serves(
    ranks: list[str], replicas: int, expected: tuple[int, list[int], str]
) -> None:
    assert rolled(*ranks, desired=1, replicas=replicas) == expected


def test_a_rank_counts_once_every_frontend_has_accepted_it() -> None:
    """The readiness probe passes after loading. If the other rank stopped then, requests would find no engine."""
    assert rolled("old ready", "ready unlinked", desired=1, replicas=2) == (2, [], "")
    assert rolled("ready unlinked", "ready", desired=1, replicas=2) == (2, [], "")


def test_a_broken_template_never_replaces_the_old_rank() -> None:
    for failure in ("crashing", "no-image", "unready", "starting"):
        assert rolled("old ready", failure, desired=1, replicas=2, waited=10_000) == (2, [], "")


def test_without_room_for_a_surge_rank_max_unavailable_rules() -> None:
    for waited, expected in (
        (SURGE_SECONDS - 1, (2, [], "")),
        (SURGE_SECONDS, (1, [0], "new")),
    ):
        assert rolled("old ready", "pending", desired=1, replicas=2, waited=waited) == expected
        found = rolled("old ready", desired=1, replicas=2, not_created={1: "exceeded quota"}, missing={1: waited})
        assert found == expected


def test_a_surge_rank_that_was_just_forbidden_is_waited_for() -> None:
    assert rolled("old ready", desired=1, replicas=2, not_created={1: "exceeded quota"}) == (2, [], "")


def test_deletions_have_the_event_that_explains_them() -> None:
    of = service(2)
    found = observed(of, engines("lost leaving", "old crashing", waited=LOST_POD_MARGIN_SECONDS))
    assert [deletion.event for deletion in release_lost(found)] == ["Released"]
    assert [deletion.event for deletion in roll(of, found, {}).deletions] == ["Replacing"]


def test_without_surge_no_more_ranks_go_while_one_is_not_placed() -> None:
    """Otherwise a template that fits on no node would end one rank after the other."""
    for waited in (1, 10_000):
        words = ["old ready", "old ready", "pending"]
        assert rolled(*words, rollout=NO_SURGE, waited=waited) == (3, [], "")
        assert rolled(*words, refused="new", waited=waited) == (3, [], "new")


def test_scaled_down_ranks_leave_even_if_the_others_do_not_serve() -> None:
    """They may hold the GPU for which the others wait."""
    assert rolled("pending", "ready", desired=1, replicas=2, surging=False) == (1, [], "")


def test_a_refused_surge_is_not_tried_again_for_the_revision() -> None:
    assert rolled("old ready", desired=1, replicas=1, refused="new") == (1, [0], "new")
    assert rolled("old ready", desired=1, replicas=1, refused="another") == (2, [], "")
    assert rolled("loading", desired=1, replicas=1, refused="new") == (1, [], "")


def test_max_unavailable_zero_waits_for_room() -> None:
    rollout = {"maxSurge": 1, "maxUnavailable": 0}
    assert rolled("old ready", "pending", desired=1, replicas=2, waited=10_000, rollout=rollout) == (2, [], "")


def test_several_ranks_are_replaced_as_surge_ranks_serve() -> None:
    rollout = {"maxSurge": 2, "maxUnavailable": 1}
    ranks = ["old ready"] * 4
    assert rolled(*ranks, rollout=rollout) == (6, [], "")
    assert rolled(*ranks, "ready", "loading", desired=4, replicas=6, rollout=rollout) == (6, [3], "")
    assert rolled(*ranks, "ready", "ready", desired=4, replicas=6, rollout=rollout) == (6, [2, 3], "")
    assert rolled(*ranks[:3], "loading", "ready", "ready", desired=4, replicas=6, rollout=rollout)[1] == [2]


def test_an_old_surge_rank_is_renewed_before_it_counts() -> None:
    """After a second change during a roll-out, the surge rank has the first change's template."""
    assert rolled("old ready", "old ready", desired=1, replicas=2) == (2, [1], "")
    assert rolled("leaving", "old ready", desired=1, replicas=2) == (2, [], "")
    assert rolled("old ready", "old crashing", desired=1, replicas=2) == (2, [1], "")


def test_ranks_on_a_cordoned_node_are_moved_like_old_ones() -> None:
    cordoned = frozenset({"a"})
    assert rolled("ready @a", desired=1, cordoned=cordoned) == (2, [], "")
    assert rolled("ready @a", "ready @b", desired=1, replicas=2, cordoned=cordoned) == (2, [0], "")
    assert rolled("ready @b", "ready @b", desired=1, replicas=2, cordoned=cordoned) == (1, [], "")
    assert rolled("ready @a", "ready @a", desired=1, replicas=2, cordoned=cordoned) == (2, [1], "")


def test_a_crash_without_a_rollout_starts_no_surge() -> None:
    assert rolled("crashing", "ready") == (2, [], "")
    assert rolled("-", "starting") == (2, [], "")


def test_nothing_is_decided_before_the_spec_is_observed() -> None:
    unseen = workload(2, is_observed=False)
    assert rolled("old ready", "old ready", stateful_set=unseen) == (2, [], "")
    keeps = workload(3, is_observed=False)
    assert rolled("old ready", "old ready", stateful_set=keeps) == (3, [], "")
    too_many = workload(7, is_observed=False)
    assert rolled("old ready", "old ready", stateful_set=too_many) == (2, [], "")
    of = service(1)
    words = roll(of, observed(of, engines("ready"), stateful_set=unseen), {}).under_way
    assert "has not processed the new spec" in words


def test_the_first_engines_are_not_a_rollout() -> None:
    of = service(1)
    unseen = workload(1, pods=0, updated=0, is_observed=False)
    assert roll(of, observed(of, engines("loading"), stateful_set=unseen), {}) == EngineRollout(1)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ("ready, ready", ""),
        ("old ready, ready", "1 engine pod still runs the old revision"),
        ("old ready, old ready", "2 engine pods still run the old revision"),
        ("old crashing, ready", "1 engine pod still runs the old revision"),
        ("ready @a, ready @b", "1 engine pod is on a node that is being drained"),
        (
            "ready @a, ready @a, old ready @b",
            "1 engine pod still runs the old revision; 2 engine pods are on a node that is being drained",
        ),
    ],
)
def test_a_rollout_describes_the_ranks_that_are_left(ranks: str, words: str) -> None:
    names = ranks.split(", ")
    of = service(len(names))
    found = observed(of, engines(*names), stateful_set=workload(len(names)), cordoned=frozenset({"a"}))
    assert roll(of, found, {}).under_way == words


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ("ready, loading", "1 new engine pod is not ready yet"),
        ("loading, loading", "2 new engine pods are not ready yet"),
    ],
)
def test_a_rollout_with_surge_describes_new_ranks_that_load(ranks: str, words: str) -> None:
    of = service(2)
    found = observed(of, engines(*ranks.split(", "), "ready"), stateful_set=workload(3))
    assert roll(of, found, {"surgeFrom": 2}).under_way == words


def test_ranks_that_leave_are_not_replaced() -> None:
    assert rolled("ready", "old ready", "old ready", desired=1, replicas=1)[1] == []


def test_a_missing_stateful_set_gets_the_desired_ranks() -> None:
    assert rolled(desired=3, stateful_set=None) == (3, [], "")


@pytest.mark.parametrize("surge", [0, 1, 2])
@pytest.mark.parametrize("desired", [1, 2, 4])
def test_a_rollout_ends_and_service_never_stops(desired: int, surge: int) -> None:
    """A simulation in which a pod is ready two rounds after its creation, and the controller follows at once."""
    rollout = {"maxSurge": surge, "maxUnavailable": 1}
    pods, replicas = dict.fromkeys(range(desired), "old ready"), desired
    for _ in range(60):
        words = [pods.get(rank, "-") for rank in range(max(pods) + 1)]
        replicas, deletions, _ = rolled(*words, desired=desired, replicas=replicas, rollout=rollout)
        for rank in deletions:
            pods[rank] = "pulling"
        for rank in list(pods):
            if rank >= replicas:
                del pods[rank]
        for rank in range(replicas):
            pods.setdefault(rank, "pulling")
        serving = sum(word.endswith("ready") and "unready" not in word for word in pods.values())
        assert serving >= (desired if surge else desired - 1)
        pods = {rank: {"pulling": "loading", "loading": "ready"}.get(word, word) for rank, word in pods.items()}
        if pods == dict.fromkeys(range(desired), "ready") and replicas == desired:
            return
    raise AssertionError(f"the roll-out did not end: {pods}")


def test_pods_are_forced_on_lost_nodes_only_and_after_the_margin() -> None:
    of = service(3)

    def released(waited: float) -> list[int]:
        found = observed(of, engines("lost leaving", "leaving", "lost", waited=waited))
        return [deletion.pod.ordinal for deletion in release_lost(found) if deletion.grace == 0]

    assert released(LOST_POD_MARGIN_SECONDS - 0.1) == []
    assert released(LOST_POD_MARGIN_SECONDS) == [0]
    assert released(100_000) == [0]  # rank 1 drains on a live node: never force-delete it
