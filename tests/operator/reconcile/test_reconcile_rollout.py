"""Roll-outs and upgrades over several reconciles: decisions that must survive the pass that makes them."""

from typing import Any

import pytest

from kvasir_operator.cluster.kinds import INFERENCE_SERVICE, POD, STATEFUL_SET, Kind
from kvasir_operator.reconciler import STATUS_INTERVAL_SECONDS
from mock_cluster import MockCluster
from mock_operator import Operator
from operator_facts import NEWER, RELEASE


async def fleet(operator: Operator, size: int) -> list[str]:
    names = [f"demo-{number}" for number in range(size)]
    for name in names:
        operator.cluster.add_service(name, uid=f"uid-{name}")
        await operator.settle(name)
    return names


def image(cluster: MockCluster, name: str) -> str:
    template = cluster.of(STATEFUL_SET, f"{name}-engine")["spec"]["template"]
    return str(template["spec"]["containers"][0]["image"])


def upgraded(cluster: MockCluster, names: list[str]) -> list[str]:
    return [name for name in names if image(cluster, name) == NEWER.engine_image]


async def test_a_new_release_changes_no_pods_unasked(settled: Operator) -> None:
    settled.restart(NEWER)
    await settled.later()
    assert settled.cluster.condition("UpgradeAvailable") == ("True", "UpgradePending")
    assert image(settled.cluster, "demo") == RELEASE.engine_image


async def test_a_requested_upgrade_is_rolled_out(settled: Operator) -> None:
    settled.restart(NEWER)
    metadata = settled.cluster.of(INFERENCE_SERVICE, "demo")["metadata"]
    metadata["annotations"] = {"serving.kvasir.dev/release": NEWER.id}
    await settled.settle()
    assert image(settled.cluster, "demo") == NEWER.engine_image
    assert settled.cluster.condition("UpgradeAvailable") == ("False", "AsDesired")


async def test_an_upgrade_that_cannot_wait_is_announced(operator: Operator) -> None:
    env = [{"name": f"V{number}", "value": "x" * 30000} for number in range(5)]
    operator.cluster.add_service(engine={"pod": {"env": env}})
    await operator.settle()
    entries = operator.cluster.status()["conditions"]
    (upgrade,) = (entry for entry in entries if entry["type"] == "UpgradeAvailable")
    assert "the pod template of StatefulSet demo-engine is longer than 128 KiB" in upgrade["message"]
    assert "Deployment" not in upgrade["message"]
    operator.restart(NEWER)
    await operator.later()
    assert image(operator.cluster, "demo") == NEWER.engine_image


async def test_upgrades_are_limited_and_go_on_as_they_settle(operator: Operator) -> None:
    names = await fleet(operator, 3)
    operator.restart(NEWER, upgrades=1)
    for number in range(1, 4):
        for name in names:
            operator.clock.seconds += STATUS_INTERVAL_SECONDS
            await operator.once(name)
        assert len(upgraded(operator.cluster, names)) == number
        for _ in range(3):  # unchanged as long as no pod is ready with the new template
            operator.clock.seconds += STATUS_INTERVAL_SECONDS
            for name in names:
                await operator.once(name)
            assert len(upgraded(operator.cluster, names)) == number
        for name in upgraded(operator.cluster, names):
            for _ in range(6):
                operator.cluster.run_controllers()
                operator.clock.seconds += STATUS_INTERVAL_SECONDS
                await operator.once(name)


async def roll_out(operator: Operator, passes: int) -> list[int]:
    """Return the replicas of the StatefulSet after each pass. A deleted pod is created again at once."""
    replicas = []
    for _ in range(passes):
        operator.cluster.run_controllers()
        await operator.later()
        replicas.append(operator.cluster.of(STATEFUL_SET, "demo-engine")["spec"]["replicas"])
    return replicas


async def test_a_rollout_with_room_has_one_more_rank_meanwhile(settled: Operator) -> None:
    settled.cluster.change_service(engine={"maxNumSeqs": 8})
    await settled.later()
    replicas = await roll_out(settled, 8)
    assert max(replicas) == 2
    assert replicas[-1] == 1
    await settled.settle()


async def test_a_killed_operator_has_kept_the_refused_surge(
    settled: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next operator starts a surge rank in the place of the deleted rank."""
    settled.cluster.forbidden.add("demo-engine-2")
    settled.cluster.change_service(engine={"dataParallelSize": 2})
    await settled.settle()
    kept: list[str] = []
    delete = settled.cluster.delete

    async def recorded(kind: Kind, *arguments: Any, **options: Any) -> None:
        if kind == POD:
            status = settled.cluster.of(INFERENCE_SERVICE, "demo")["status"]
            kept.append(status.get("rollout", {}).get("surgeRefused", ""))
        await delete(kind, *arguments, **options)

    monkeypatch.setattr(settled.cluster, "delete", recorded)
    settled.cluster.change_service(engine={"dataParallelSize": 2, "maxNumSeqs": 8})
    await settled.later()
    await roll_out(settled, 40)
    assert len(kept) == 2
    assert all(kept)


async def test_a_rollout_replaces_both_pods_of_a_rank_in_one_pass(operator: Operator) -> None:
    two_pods = {"resourceName": "", "tensorParallelSize": 2, "nodes": 2}
    operator.cluster.add_service(engine={"dataParallelSize": 2, **two_pods})
    await operator.settle()
    assert operator.cluster.status()["engines"]["summary"] == "2/2"
    assert (operator.cluster.status()["replicas"], len(engine_pods(operator))) == (2, 4)
    operator.cluster.change_service(engine={"dataParallelSize": 2, **two_pods, "maxNumSeqs": 8})
    sizes, remaining = [], []
    for _ in range(12):
        await operator.later()
        sizes.append(operator.cluster.of(STATEFUL_SET, "demo-engine")["spec"]["replicas"])
        remaining.append(engine_pods(operator))
        operator.cluster.run_controllers()
    assert (max(sizes), sizes[-1]) == (6, 4)
    for names in remaining:
        halves = [{f"demo-engine-{first}", f"demo-engine-{first + 1}"} & names for first in (0, 2, 4)]
        assert all(len(half) != 1 for half in halves)
    assert any("demo-engine-2" not in names for names in remaining)
    await operator.settle()


def engine_pods(operator: Operator) -> set[str]:
    return {name for name in operator.cluster.names(POD) if "engine" in name}


async def test_a_rollout_without_room_gives_up_its_surge_once(settled: Operator) -> None:
    """The decision survives the pass that makes it, so the refused rank is not requested again."""
    settled.cluster.forbidden.add("demo-engine-2")
    settled.cluster.change_service(engine={"dataParallelSize": 2})
    await settled.settle()
    settled.cluster.change_service(engine={"dataParallelSize": 2, "maxNumSeqs": 8})
    await settled.later()
    replicas = await roll_out(settled, 40)
    first = replicas.index(2, replicas.index(3))
    assert set(replicas[:first]) == {3}
    assert set(replicas[first:]) == {2}
    await settled.settle()
