"""Roll-outs of engines with several pods: ranks are counted, and the pods of a rank go together."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir_operator.observe.engine_ranks import engine_ranks
from kvasir_operator.observe.observed import Member
from kvasir_operator.plan.conditions import UNENCRYPTED
from kvasir_operator.plan.engine_rollout import EngineRollout, roll_engines
from kvasir_operator.plan.plan import make_plan
from kvasir_operator.spec import InferenceService
from operator_facts import NOON, RELEASE, SURGE_SECONDS, engines, frontends, observed, service, workload
from status_facts import message

NO_SURGE = {"maxSurge": 0, "maxUnavailable": 1}


def several(ranks: int, nodes: int = 2, **spec: Any) -> InferenceService:
    return service(ranks, engine={"resourceName": "", "tensorParallelSize": nodes, "nodes": nodes}, **spec)


def roll(
    *pods: str,
    ranks: int,
    replicas: int = 0,
    nodes: int = 2,
    rollout: Mapping[str, Any] | None = None,
    waited: float = 1.0,
    **facts: Any,
) -> EngineRollout:
    of = several(ranks, nodes, rollout=dict(rollout or {}))
    return decide(of, engines(*pods, waited=waited), replicas or len(pods), **facts)


def decide(of: InferenceService, pods: tuple[Member, ...], replicas: int, **facts: Any) -> EngineRollout:
    desired = of.engine.data_parallel_size
    memo = {"surgeFrom": desired} if replicas > of.engine.pods else {}
    found = observed(of, pods, stateful_set=workload(replicas), **facts)
    return roll_engines(of, found, engine_ranks(of, found), memo)


def deleted(rollout: EngineRollout) -> list[int]:
    return sorted(deletion.pod.ordinal for deletion in rollout.deletions)


@pytest.mark.parametrize(
    ("pods", "replaced"),
    [
        ("ready ready, ready ready", []),
        ("old-ready old-ready, old-ready old-ready", [2, 3]),
        ("old-ready old-ready, ready ready", [0, 1]),
        ("old-ready old-ready, loading ready", []),
        ("old-ready old-ready, - ready", []),
        ("old-ready old-ready, ready -", []),
        ("old-ready old-ready, leaving leaving", []),
        ("old-ready old-ready, leaving ready", []),
        ("old-ready old-ready, old-crashing old-starting", [0, 1, 2, 3]),
        ("old-starting old-starting, old-starting old-crashing", [0, 1, 2, 3]),
        ("ready ready, old-ready ready", [2]),
        ("ready ready, leaving old-ready", [3]),
        ("loading loading, leaving old-ready", [3]),
        ("ready ready, - old-ready", [3]),
    ],
)
def test_without_surge_a_rank_is_replaced_as_a_whole(pods: str, replaced: list[int]) -> None:
    """A rank that is half replaced cannot serve, so its other pods follow at once."""
    words = [word.replace("-", " ") if len(word) > 1 else word for word in pods.replace(",", "").split()]
    found = roll(*words, ranks=2, rollout=NO_SURGE)
    assert (deleted(found), found.ranks) == (replaced, 2)


def test_surge_ranks_have_as_many_pods_as_others() -> None:
    old = ("old ready", "old ready")
    assert roll(*old, ranks=1).ranks == 2
    assert deleted(roll(*old, "loading", "pulling", ranks=1)) == []
    assert deleted(roll(*old, "ready", "-", ranks=1, replicas=4)) == []
    assert deleted(roll(*old, "ready", "ready", ranks=1)) == [0, 1]
    assert roll("ready", "ready", "ready", "ready", ranks=1).ranks == 1


def test_the_stateful_set_has_the_pods_of_all_ranks() -> None:
    of = several(2, nodes=3)
    plan = make_plan(of, observed(of, engines(*["ready"] * 6), frontends("ready")), {}, RELEASE, NOON)
    assert not plan.applies
    assert (plan.status["replicas"], plan.status["engines"]["summary"]) == (2, "2/2")


@pytest.mark.parametrize("broken", [("pending", "pulling"), ("pulling", "pending"), ("pending", "pending")])
def test_a_surge_rank_without_room_for_a_pod_is_given_up(broken: tuple[str, str]) -> None:
    old = ("old ready", "old ready")
    before = roll(*old, *broken, ranks=1, waited=SURGE_SECONDS - 1)
    after = roll(*old, *broken, ranks=1, waited=SURGE_SECONDS)
    assert (deleted(before), before.ranks) == ([], 2)
    assert (deleted(after), after.ranks, after.surge_refused) == ([0, 1], 1, "new")


@pytest.mark.parametrize(("others", "forbidden"), [(["starting"], [3]), ([], [2, 3])])
def test_a_surge_rank_with_a_forbidden_pod_is_given_up(others: list[str], forbidden: list[int]) -> None:
    quota = dict.fromkeys(forbidden, "exceeded quota")
    for waited, expected in ((SURGE_SECONDS - 1, ([], 2)), (SURGE_SECONDS, ([0, 1], 1))):
        missing = dict.fromkeys(forbidden, waited)
        found = roll("old ready", "old ready", *others, ranks=1, replicas=4, not_created=quota, missing=missing)
        assert (deleted(found), found.ranks) == expected


def test_a_rank_with_one_pod_on_a_drained_node_moves_as_a_whole() -> None:
    cordoned = frozenset({"a"})
    pods = ("ready @b", "ready @a")
    assert roll(*pods, ranks=1, cordoned=cordoned).ranks == 2
    found = roll(*pods, "ready @c", "ready @c", ranks=1, cordoned=cordoned)
    assert deleted(found) == [0, 1]
    assert [deletion.why for deletion in found.deletions] == [
        "pod demo-engine-0 serves together with pod demo-engine-1, which is on node a, which is being drained",
        "pod demo-engine-1 is on node a, which is being drained",
    ]


def test_without_room_a_drained_rank_goes_only_if_others_remain() -> None:
    """The budget forbids evictions of its pods, so the drain would never end."""
    cordoned, waited = frozenset({"a"}), SURGE_SECONDS
    surge = ("pending", "pending")
    alone = roll("ready @b", "ready @a", *surge, ranks=1, cordoned=cordoned, waited=waited)
    assert (deleted(alone), alone.ranks) == ([], 2)
    two = roll("ready @b", "ready @a", "ready @c", "ready @c", *surge, ranks=2, cordoned=cordoned, waited=waited)
    assert (deleted(two), two.ranks) == ([0, 1], 2)


@pytest.mark.parametrize(("waited", "ranks"), [(SURGE_SECONDS - 1, 3), (SURGE_SECONDS, 2)])
def test_surge_ranks_leave_their_room_to_a_half_placed_rank(waited: float, ranks: int) -> None:
    """Rank 1 has left a drained node, and the surge rank has the room of its second pod."""
    pods = ("ready @b", "ready @a", "unready @b", "pending", "ready @b", "ready @b")
    found = roll(*pods, ranks=2, cordoned=frozenset({"a"}), waited=waited)
    assert (deleted(found), found.ranks) == ([], ranks)
    kept = roll(*pods, ranks=2, cordoned=frozenset({"a"}), waited=waited, rollout={"maxUnavailable": 0})
    assert (deleted(kept), kept.ranks) == ([], 3)


def test_pods_are_counted_in_descriptions() -> None:
    found = roll("old ready", "old ready", "ready", "ready", ranks=2, rollout=NO_SURGE)
    assert found.under_way == "2 engine pods still run the old revision"
    waiting = roll("ready", "ready", "loading", "loading", "ready", "ready", ranks=2)
    assert waiting.under_way == "1 new engine is not ready yet"


def test_a_scaled_down_rank_is_counted_by_its_pods() -> None:
    of = several(1)
    found = observed(of, engines("ready", "ready", "leaving", "leaving"), frontends("ready"))
    status = make_plan(of, found, {}, RELEASE, NOON).status
    assert message(status).endswith("2 engine pods are being removed")


@pytest.mark.parametrize("second", ["ready", "crashing"])
def test_the_status_names_tensors_without_encryption(second: str) -> None:
    of = several(1)
    status = make_plan(of, observed(of, engines("ready", second), frontends("ready")), {}, RELEASE, NOON).status
    assert message(status, "EnginesReady").endswith(UNENCRYPTED)
    assert UNENCRYPTED not in message(status, "Ready")
    single = service(1)
    status = make_plan(single, observed(single, engines("ready"), frontends("ready")), {}, RELEASE, NOON).status
    assert UNENCRYPTED not in message(status, "EnginesReady")


def test_scale_counts_ranks_and_selects_their_leaders() -> None:
    """An autoscaler divides by the number of selected pods."""
    of = several(2, nodes=3)
    pods = engines(*["ready"] * 6, "ready")
    status = make_plan(of, observed(of, pods, frontends("ready")), {"rollout": {}}, RELEASE, NOON).status
    assert status["replicas"] == 3
    assert status["selector"].endswith(",apps.kubernetes.io/pod-index in (0,3)")


class Simulation:
    """A cluster in which a pod runs two rounds after its creation, and a rank serves once all of its pods run."""

    def __init__(self, ranks: int, nodes: int, surge: int, unavailable: int) -> None:
        self._of = several(ranks, nodes, rollout={"maxSurge": surge, "maxUnavailable": unavailable})
        self.nodes, self.pods = nodes, dict.fromkeys(range(ranks * nodes), "old ready")

    @property
    def ranks(self) -> list[range]:
        """The ordinals of each rank, surge ranks included."""
        return [range(first, first + self.nodes) for first in range(0, len(self.pods), self.nodes)]

    def decide(self) -> set[int]:
        """Let the operator decide and the controllers act. Return the ordinals of deleted pods."""
        words = [self.pods[ordinal] for ordinal in range(len(self.pods))]
        found = decide(self._of, engines(*words), len(words))
        gone = set(deleted(found))
        size = found.ranks * self.nodes
        self.pods = {n: "pulling" if n in gone else self.pods.get(n, "pulling") for n in range(size)}
        return gone

    def run_pods(self) -> None:
        after = {"pulling": "starting", "starting": "loading"}
        self.pods = {ordinal: after.get(word, word) for ordinal, word in self.pods.items()}
        for rank in self.ranks:
            if all(self.pods[ordinal] in ("loading", "ready") for ordinal in rank):
                self.pods |= dict.fromkeys(rank, "ready")

    def evict(self, ordinal: int) -> None:
        """Evict a pod. The others of its rank notice it and start again."""
        for other in self.ranks[ordinal // self.nodes]:
            self.pods[other] = "old starting" if self.pods[other].startswith("old") else "starting"
        self.pods[ordinal] = "pulling"

    @property
    def serving(self) -> int:
        """The number of ranks whose pods all serve and have the same template."""
        states = [{self.pods[ordinal] for ordinal in rank} for rank in self.ranks]
        return states.count({"ready"}) + states.count({"old ready"})

    @property
    def is_done(self) -> bool:
        return self.pods == dict.fromkeys(range(self._of.engine.pods), "ready")


SIZES = st.tuples(st.integers(1, 4), st.integers(2, 4), st.integers(0, 2), st.integers(1, 2))


@settings(deadline=None, max_examples=50)
@given(SIZES)
def test_a_rollout_ends_and_enough_ranks_serve_meanwhile(sizes: tuple[int, int, int, int]) -> None:
    ranks, _, surge, unavailable = sizes
    cluster = Simulation(*sizes)
    for _ in range(100):
        cluster.decide()
        assert cluster.serving >= (ranks if surge else ranks - unavailable)
        cluster.run_pods()
        if cluster.is_done:
            return
    raise AssertionError(f"the roll-out did not end: {cluster.pods}")


@settings(deadline=None, max_examples=50)
@given(SIZES, st.dictionaries(st.integers(0, 20), st.integers(0, 15), max_size=6))
def test_a_rollout_with_evictions_never_leaves_half_a_rank(
    sizes: tuple[int, int, int, int], evictions: dict[int, int]
) -> None:
    cluster = Simulation(*sizes)
    for number in range(100):
        if number in evictions:
            cluster.evict(evictions[number] % len(cluster.pods))
        before, ranks = dict(cluster.pods), cluster.ranks
        gone = cluster.decide()
        for rank in ranks:
            if gone & set(rank):
                assert {ordinal for ordinal in rank if before[ordinal].startswith("old")} <= gone
        cluster.run_pods()
        if cluster.is_done and number > max(evictions, default=0):
            return
    raise AssertionError(f"the roll-out did not end: {cluster.pods}")
