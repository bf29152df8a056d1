"""Roll-outs keep old ranks until new ones serve, within maxSurge and maxUnavailable, in all circumstances."""

from collections.abc import Sequence
from typing import Final

from e2e.operator.harness.cluster_faults import QUOTA, node, set_quota
from e2e.operator.harness.kubelet import kubelet
from e2e.operator.harness.operator_process import PATIENCE
from e2e.operator.harness.pod_status import crash_looping, is_ready, ready, starting, unschedulable
from e2e.operator.harness.world import InProcess, World
from kvasir_operator.cluster.cluster_client import Object

SURGE_PATIENCE: Final = 30.0
"""How many seconds a surge rank may wait for room."""
AN_HOUR: Final = 3600.0
NO_SURGE: Final[Object] = {"maxSurge": 0, "maxUnavailable": 1}
NO_ROOM: Final = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


async def test_unready_old_ranks_go_within_max_unavailable(world: World) -> None:
    """Under load, ranks sometimes fail a probe. They must not all be deleted for it."""
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=4, rollout=NO_SURGE)
        await new_template(world, operator)
        for name in ("demo-engine-1", "demo-engine-2", "demo-engine-3"):
            await world.set_pod(await world.pod(name), starting("engine"))
        await operator.rounds()
        assert len(await of(world, old)) >= 3


async def test_ranks_are_bounded_by_a_larger_max_unavailable(world: World) -> None:
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=4, rollout={"maxSurge": 0, "maxUnavailable": 2})
        await new_template(world, operator)
        await operator.until(lambda: only(world, old, 2), after=1)
        await operator.rounds()
        assert len(await of(world, old)) == 2  # two wait for the two new ones
        async with kubelet(world):
            await operator.until(lambda: rolled(world, old, 4), after=2)


async def test_the_only_rank_is_deleted_when_its_surge_serves(world: World) -> None:
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=1)
        await new_template(world, operator)
        await operator.until(lambda: there(world, "demo-engine-1"))
        assert (await world.stateful_set())["spec"]["replicas"] == 2
        await operator.rounds()
        assert len(await of(world, old)) == 1  # the surge rank exists but does not serve yet
        status = await world.status()
        assert (status["replicas"], status["engines"]["desired"]) == (1, 1)  # the values that an autoscaler reads
        surge = await world.pod("demo-engine-1")
        await world.set_pod(surge, starting("engine"))
        await operator.rounds()
        assert len(await of(world, old)) == 1
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


async def test_a_surge_without_room_gives_way_after_a_while(world: World) -> None:
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=3)
        await new_template(world, operator)
        await operator.until(lambda: there(world, "demo-engine-3"))
        await world.set_pod(await world.pod("demo-engine-3"), unschedulable(NO_ROOM, stamp(operator)))
        for _ in range(3):
            await operator.reconcile(after=SURGE_PATIENCE / 6)
        assert len(await of(world, old)) == 3
        operator.clock.advance(SURGE_PATIENCE)
        await operator.until(lambda: only(world, old, 2), after=1)
        await operator.rounds()
        assert len(await of(world, old)) == 2  # maxUnavailable is 1
        async with kubelet(world):
            await operator.until(lambda: rolled(world, old, 3), after=2)


async def test_a_quota_on_pods_does_not_stop_a_roll_out(world: World) -> None:
    """No surge rank can be created, which only an Event reports."""
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=2)
        quota = await set_quota(world, pods=0)
        await new_template(world, operator)
        await operator.rounds()
        assert len(await of(world, old)) == 2
        operator.clock.advance(SURGE_PATIENCE)
        await operator.until(lambda: only(world, old, 1), after=1)
        await operator.rounds()
        assert len(await of(world, old)) == 1
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
        assert len(await of(world, old)) == 1
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
        assert len(await of(world, old)) == 2
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


async def test_a_rank_that_drains_counts_as_missing(world: World) -> None:
    """A pod bound to a node exists until its kubelet has ended it, so the next one waits."""
    async with node(world) as name, world.in_process() as operator:
        await world.create(engine={"dataParallelSize": 3}, rollout=NO_SURGE)
        await operator.reconcile()
        await world.settled(ranks=3)
        for pod in await world.pods("engine"):
            await world.bind(pod, name)
        await world.make_ready("engine")
        await operator.reconcile()
        old = uids(await world.pods("engine"))
        await new_template(world, operator)
        await operator.until(lambda: only(world, old, 2), after=1)
        for _ in range(4):
            await operator.reconcile(after=AN_HOUR)
        assert len(await of(world, old)) == 2
        assert len(await world.pods("engine")) == 3
        async with kubelet(world, name):
            await operator.until(lambda: rolled(world, old, 3), after=2)


async def test_every_unready_rank_is_replaced_in_the_end(world: World) -> None:
    """All ranks hang, and the new template works. The roll-out must not wait for the old ranks."""
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=3, rollout=NO_SURGE)
        for pod in await world.pods("engine"):
            await world.set_pod(pod, starting("engine"))
        await new_template(world, operator)
        async with kubelet(world, works=lambda pod: pod["metadata"]["uid"] not in old):
            await operator.until(lambda: rolled(world, old, 3), after=1)


async def test_a_broken_template_takes_no_old_rank(world: World) -> None:
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=1)
        await new_template(world, operator)
        await operator.until(lambda: there(world, "demo-engine-1"))
        await world.set_pod(await world.pod("demo-engine-1"), crash_looping("engine", "no such option"))
        for _ in range(4):
            await operator.reconcile(after=AN_HOUR)
        (pod,) = await of(world, old)
        assert is_ready(pod)
        conditions = {entry["type"]: entry for entry in (await world.status())["conditions"]}
        assert conditions["Ready"]["status"] == "True" or "frontends" in conditions["Ready"]["message"]
        assert conditions["Progressing"]["reason"] != "AsDesired"
        assert "no such option" in conditions["Ready"]["message"]


async def test_a_broken_template_that_is_taken_back_ends_the_surge(world: World) -> None:
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=2)
        await new_template(world, operator)
        await operator.until(lambda: there(world, "demo-engine-2"))
        await world.set_pod(await world.pod("demo-engine-2"), crash_looping("engine"))
        await operator.rounds(2)
        await world.update(lambda spec: spec["engine"].pop("maxModelLen"))

        async def ended() -> bool:
            return len(await world.pods("engine")) == 2 and (await replicas(world)) == 2

        await operator.until(ended)
        await operator.rounds()
        assert len(await of(world, old)) == 2
        assert await replicas(world) == 2


async def test_a_second_change_in_the_middle_rolls_on(world: World) -> None:
    """The surge rank of the first change serves but is outdated, so it is replaced, too."""
    async with world.in_process() as operator, kubelet(world):
        old = await serving(world, operator, ranks=2)
        await new_template(world, operator)
        await operator.until(lambda: there(world, "demo-engine-2"))
        await new_template(world, operator, length=256)

        async def done() -> bool:
            assert sum(map(is_ready, await world.pods("engine"))) >= 2
            return await rolled(world, old, 2)

        await operator.until(done, after=2)
        for pod in await world.pods("engine"):
            arguments = pod["spec"]["containers"][0]["args"]
            assert arguments[arguments.index("--max-model-len") + 1] == "256"


async def test_a_scale_during_a_roll_out_keeps_ranks_serving(world: World) -> None:
    async with world.in_process() as operator, kubelet(world):
        old = await serving(world, operator, ranks=2)
        await new_template(world, operator)
        await operator.until(lambda: there(world, "demo-engine-2"))
        await world.update(lambda spec: spec["engine"].update(dataParallelSize=3))

        async def done() -> bool:
            assert sum(map(is_ready, await world.pods("engine"))) >= 2
            return await rolled(world, old, 3)

        await operator.until(done, after=2)


async def test_a_killed_operator_goes_on_in_the_middle(world: World) -> None:
    """A new operator takes over after some passes. The cluster contains the complete state of the roll-out."""
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=2)
        await new_template(world, operator)
    async with kubelet(world):

        async def done() -> bool:
            async with world.in_process() as operator:
                await operator.rounds(5)
            pods = await world.pods("engine")
            assert sum(map(is_ready, pods)) >= 2
            assert len(pods) <= 3
            return await rolled(world, old, 2)

        await world.eventually(done)


async def test_an_operator_process_rolls_without_missing_a_rank(world: World) -> None:
    """The watches and timers of the operator complete the roll-out without other triggers."""
    async with world.operator() as operator, kubelet(world):
        await operator.logs("leading")
        await world.create(engine={"dataParallelSize": 2})

        async def serves() -> bool:
            return await ready_ranks(world) == 2

        await world.eventually(serves)
        old = uids(await world.pods("engine"))
        await world.update(lambda spec: spec["engine"].update(maxModelLen=128))

        async def done() -> bool:
            assert await ready_ranks(world) >= 2
            return await rolled(world, old, 2)

        await world.eventually(done, 3 * PATIENCE)


async def serving(world: World, operator: InProcess, *, ranks: int, rollout: Object | None = None) -> set[str]:
    """Create a service whose ranks are ready. Return their UIDs."""
    await world.create(engine={"dataParallelSize": ranks}, rollout=rollout or {})
    await operator.reconcile()
    await world.settled(ranks=ranks)
    await world.make_ready("engine")
    await operator.reconcile()
    return uids(await world.pods("engine"))


async def new_template(world: World, operator: InProcess, length: int = 128) -> None:
    """Change the engines' template, and wait until the StatefulSet's controller has observed it."""
    await world.update(lambda spec: spec["engine"].update(maxModelLen=length))

    async def observed() -> bool:
        workload = await world.stateful_set()
        arguments = workload["spec"]["template"]["spec"]["containers"][0]["args"]
        return (
            str(length) in arguments
            and workload["status"]["observedGeneration"] == workload["metadata"]["generation"]
        )

    await operator.until(observed)


async def of(world: World, old: set[str]) -> Sequence[Object]:
    """Return the pods among these that exist and are not terminating."""
    pods = await world.pods("engine")
    return [pod for pod in pods if pod["metadata"]["uid"] in old and "deletionTimestamp" not in pod["metadata"]]


async def only(world: World, old: set[str], count: int) -> bool:
    return len(await of(world, old)) == count


async def rolled(world: World, old: set[str], ranks: int) -> bool:
    """Return whether no old pod exists, all ranks are ready, and there is no surge rank."""
    pods = await world.pods("engine")
    return (
        not old & uids(pods)
        and [pod["metadata"]["name"] for pod in pods] == [f"demo-engine-{rank}" for rank in range(ranks)]
        and all(map(is_ready, pods))
        and await replicas(world) == ranks
    )


async def replicas(world: World) -> int:
    return int((await world.stateful_set())["spec"]["replicas"])


async def ready_ranks(world: World) -> int:
    return sum(map(is_ready, await world.pods("engine")))


async def there(world: World, name: str) -> bool:
    return name in [pod["metadata"]["name"] for pod in await world.pods("engine")]


def uids(pods: Sequence[Object]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def stamp(operator: InProcess) -> str:
    return operator.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
