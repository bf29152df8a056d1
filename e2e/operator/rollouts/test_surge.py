"""Roll-outs with surge ranks: if there is room, additional ranks serve before old ones are deleted."""

from typing import Final

from e2e.operator.harness.cluster_faults import QUOTA, set_quota, write_event
from e2e.operator.harness.engine_pods import (
    new_template,
    only,
    remaining,
    replicas,
    rolled,
    serving,
    there,
)
from e2e.operator.harness.in_process import InProcess
from e2e.operator.harness.kubelet import kubelet
from e2e.operator.harness.pod_status import is_ready, ready, starting, unschedulable
from e2e.operator.harness.world import World

SURGE_PATIENCE: Final = 30.0
"""How many seconds a surge rank may wait for room."""
AN_HOUR: Final = 3600.0
NO_ROOM: Final = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


async def test_the_only_rank_is_deleted_when_its_surge_serves(world: World) -> None:
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=1)
        await new_template(world, operator)
        await operator.until(lambda: there(world, "demo-engine-1"))
        assert (await world.stateful_set())["spec"]["replicas"] == 2
        await operator.rounds()
        assert len(await remaining(world, old)) == 1  # the surge rank exists but does not serve yet
        status = await world.status()
        assert (status["replicas"], status["engines"]["desired"]) == (1, 1)  # the values that an autoscaler reads
        surge = await world.pod("demo-engine-1")
        await world.set_pod(surge, starting("engine"))
        await operator.rounds()
        assert len(await remaining(world, old)) == 1
        await world.set_pod(surge, ready("engine"))
        await operator.until(lambda: only(world, old, 0), after=2)
        assert is_ready(await world.pod("demo-engine-1"))
        await operator.rounds()
        assert is_ready(await world.pod("demo-engine-1"))  # it serves until the new rank 0 does
        await world.eventually(lambda: there(world, "demo-engine-0"))
        await world.set_pod(await world.pod("demo-engine-0"), ready("engine"))
        await operator.until(lambda: rolled(world, old, 1), after=2)
        await operator.reconcile()
        assert (await world.status())["engines"]["summary"] == "1/1"


async def test_a_surge_ends_with_the_ranks_that_are_wanted(world: World) -> None:
    """At every moment, at least as many ranks serve as before, and at most one is surplus."""
    async with world.in_process() as operator, kubelet(world):
        old = await serving(world, operator, ranks=3)
        await new_template(world, operator)
        most = 0

        async def done() -> bool:
            nonlocal most
            pods = await world.pods("engine")
            most = max(most, len(pods))
            assert sum(map(is_ready, pods)) >= 3
            assert len(pods) <= 4
            return await rolled(world, old, 3)

        await operator.until(done, after=2)
        assert most == 4
        await operator.reconcile()
        assert (await world.status())["engines"]["summary"] == "3/3"


async def test_a_surge_without_room_ends_after_a_while(world: World) -> None:
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=3)
        await new_template(world, operator)
        await operator.until(lambda: there(world, "demo-engine-3"))
        await world.set_pod(await world.pod("demo-engine-3"), unschedulable(NO_ROOM, stamp(operator)))
        for _ in range(3):
            await operator.reconcile(after=SURGE_PATIENCE / 6)
        assert len(await remaining(world, old)) == 3
        operator.clock.advance(SURGE_PATIENCE)
        await operator.until(lambda: only(world, old, 2), after=1)
        await operator.rounds()
        assert len(await remaining(world, old)) == 2  # maxUnavailable is 1
        async with kubelet(world):
            await operator.until(lambda: rolled(world, old, 3), after=2)


async def test_a_surge_waits_for_a_node_that_is_being_added(world: World) -> None:
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=1)
        await new_template(world, operator)
        await operator.until(lambda: there(world, "demo-engine-1"))
        surge = await world.pod("demo-engine-1")
        await world.set_pod(surge, unschedulable(NO_ROOM, stamp(operator)))
        await write_event(world, surge, "TriggeredScaleUp", "pod triggered scale-up: [{pool 0->1}]")
        for _ in range(4):
            await operator.reconcile(after=SURGE_PATIENCE)
        assert len(await remaining(world, old)) == 1
        ranks = (await world.status())["engines"]["ranks"]
        assert "pool 0->1" in ranks[1]["message"]
        async with kubelet(world):
            await operator.until(lambda: rolled(world, old, 1), after=2)


async def test_a_quota_on_pods_does_not_stop_a_roll_out(world: World) -> None:
    """No surge rank can be created, which only an Event reports."""
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=2)
        quota = await set_quota(world, pods=0)
        await new_template(world, operator)
        await operator.rounds()
        assert len(await remaining(world, old)) == 2
        operator.clock.advance(SURGE_PATIENCE)
        await operator.until(lambda: only(world, old, 1), after=1)
        await operator.rounds()
        assert len(await remaining(world, old)) == 1
        await world.cluster.delete(QUOTA, quota)
        async with kubelet(world):
            await operator.until(lambda: rolled(world, old, 2), after=1)


async def test_a_surge_given_up_stays_so_in_a_new_operator(world: World) -> None:
    """Otherwise each restarted operator would wait for room again."""
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=2)
        await new_template(world, operator)
        await operator.until(lambda: there(world, "demo-engine-2"))
        await world.set_pod(await world.pod("demo-engine-2"), unschedulable(NO_ROOM))
        await operator.reconcile()
        operator.clock.advance(SURGE_PATIENCE)
        await operator.until(lambda: only(world, old, 1), after=1)
        await operator.rounds(2)
    async with world.in_process() as operator:
        await operator.rounds()
        assert await replicas(world) == 2
        assert len(await remaining(world, old)) == 1
        async with kubelet(world):
            await operator.until(lambda: rolled(world, old, 2), after=2)
        await operator.reconcile()
        assert "rollout" not in await world.status()


async def test_max_unavailable_zero_waits_for_room(world: World) -> None:
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=2, rollout={"maxSurge": 1, "maxUnavailable": 0})
        await new_template(world, operator)
        await operator.until(lambda: there(world, "demo-engine-2"))
        await world.set_pod(await world.pod("demo-engine-2"), unschedulable(NO_ROOM))
        for _ in range(4):
            await operator.reconcile(after=AN_HOUR)
        assert len(await remaining(world, old)) == 2
        assert NO_ROOM in (await world.condition("Ready"))["message"]
        async with kubelet(world):
            await world.set_pod(await world.pod("demo-engine-2"), ready("engine"))
            await operator.until(lambda: rolled(world, old, 2), after=2)


async def test_a_larger_surge_is_not_exceeded(world: World) -> None:
    async with world.in_process() as operator, kubelet(world):
        old = await serving(world, operator, ranks=3, rollout={"maxSurge": 2, "maxUnavailable": 0})
        await new_template(world, operator)
        most = 0

        async def done() -> bool:
            nonlocal most
            pods = await world.pods("engine")
            most = max(most, len(pods))
            assert sum(map(is_ready, pods)) >= 3
            return await rolled(world, old, 3)

        await operator.until(done, after=2)
        assert most == 5


def stamp(operator: InProcess) -> str:
    return operator.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
