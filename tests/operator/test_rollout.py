"""Which engine pods are replaced, and when: never a second serving rank while one is missing."""

from typing import Any

import pytest

from kvasir_operator.pods import Pod
from kvasir_operator.rollout import pods_to_replace, under_way


def stateful_set(replicas: int, revision: str | None = "new", **status: Any) -> dict[str, Any]:
    observed = {"observedGeneration": 2, **({"updateRevision": revision} if revision else {}), **status}
    return {"metadata": {"generation": 2}, "spec": {"replicas": replicas}, "status": observed}


def engines(*pods: str) -> tuple[list[Pod], set[str]]:
    """One word per rank: "old", "new", "-" for none; with ! if it does not serve, with ~ if it is leaving."""
    made, serving = [], set()
    for rank, word in enumerate(pods):
        if word == "-":
            continue
        name = f"demo-engine-{rank}"
        metadata: dict[str, Any] = {"name": name, "labels": {"controller-revision-hash": word.strip("!~")}}
        if "~" in word:
            metadata["deletionTimestamp"] = "2026-11-21T07:00:00Z"
        elif "!" not in word:
            serving.add(name)
        made.append({"metadata": metadata})
    return made, serving


@pytest.mark.parametrize(
    ("pods", "replaced"),
    [
        ("new new new", []),
        ("old old old", [2]),
        ("old old new", [1]),
        ("old old new!", []),
        ("old old new~", []),
        ("old old -", []),
        ("old old old~", []),
        ("old old! old", [1]),
        ("old! old! old!", [0, 1, 2]),
        ("old! new! old", [0]),
        ("new! old old", []),
        ("old", [0]),
        ("new old~", []),
    ],
)
def test_which_pods_are_replaced_now(pods: str, replaced: list[int]) -> None:
    made, serving = engines(*pods.split())
    found = pods_to_replace(stateful_set(len(pods.split())), made, serving)
    assert [pod["metadata"]["name"] for pod in found] == [f"demo-engine-{rank}" for rank in replaced]


def test_a_rollout_ends_whatever_happens_and_never_takes_a_second_serving_rank() -> None:
    """Played through, with each new pod ready only after a while."""
    ranks = ["old"] * 4
    for _ in range(20):
        made, serving = engines(*ranks)
        for pod in pods_to_replace(stateful_set(4), made, serving):
            ranks[int(pod["metadata"]["name"][-1])] = "new!"
        assert sum("!" in rank for rank in ranks) <= 1
        if "new!" in ranks:
            ranks[ranks.index("new!")] = "new"
    assert ranks == ["new"] * 4


def test_ranks_that_leave_anyhow_are_not_replaced() -> None:
    made, serving = engines("new", "old", "old")
    assert pods_to_replace(stateful_set(1), made, serving) == []


def test_nothing_is_decided_on_an_older_observation() -> None:
    made, serving = engines("old", "old")
    assert pods_to_replace(stateful_set(2, observedGeneration=1), made, serving) == []
    assert pods_to_replace(stateful_set(2, revision=None), made, serving) == []


def test_what_is_under_way_is_told() -> None:
    made, _ = engines("old", "new", "old~")
    deployment = {
        "metadata": {"generation": 1},
        "spec": {"replicas": 2},
        "status": {"observedGeneration": 1, "replicas": 3, "updatedReplicas": 1},
    }
    assert under_way(stateful_set(3), deployment, made) == (
        "2 engine pods are of an old revision; 2 frontend pods are of an old revision"
    )
    assert under_way(None, None, []) == ""
