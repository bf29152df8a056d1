"""Roll-outs keep old ranks until new ones serve, within maxSurge and maxUnavailable, in all circumstances."""

from typing import Final

from e2e.operator.harness.cluster_faults import node
from e2e.operator.harness.engine_pods import (
    new_template,
    only,
    ready_ranks,
    remaining,
    replicas,
    rolled,
    serving,
    there,
    uids,
)
from e2e.operator.harness.kubelet import kubelet
from e2e.operator.harness.operator_process import PATIENCE
from e2e.operator.harness.pod_status import crash_looping, is_ready, starting
from e2e.operator.harness.world import World
from kvasir_operator.cluster.cluster_client import Object

AN_HOUR: Final = 3600.0
NO_SURGE: Final[Object] = {"maxSurge": 0, "maxUnavailable": 1}


async def test_unready_old_ranks_go_within_max_unavailable(world: World) -> None:
    """Under load, ranks sometimes fail a probe. They must not all be deleted for it."""
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=4, rollout=NO_SURGE)
        await new_template(world, operator)
        for name in ("demo-engine-1", "demo-engine-2", "demo-engine-3"):
            await world.set_pod(await world.pod(name), starting("engine"))
        await operator.rounds()
        assert len(await remaining(world, old)) >= 3


async def test_ranks_are_bounded_by_a_larger_max_unavailable(world: World) -> None:
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=4, rollout={"maxSurge": 0, "maxUnavailable": 2})
        await new_template(world, operator)
        await operator.until(lambda: only(world, old, 2), after=1)
        await operator.rounds()
        assert len(await remaining(world, old)) == 2  # two wait for the two new ones
        async with kubelet(world):
            await operator.until(lambda: rolled(world, old, 4), after=2)


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
        assert len(await remaining(world, old)) == 2
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


async def test_a_broken_template_replaces_no_old_rank(world: World) -> None:
    async with world.in_process() as operator:
        old = await serving(world, operator, ranks=1)
        await new_template(world, operator)
        await operator.until(lambda: there(world, "demo-engine-1"))
        await world.set_pod(await world.pod("demo-engine-1"), crash_looping("engine", "no such option"))
        for _ in range(4):
            await operator.reconcile(after=AN_HOUR)
        (pod,) = await remaining(world, old)
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
        assert len(await remaining(world, old)) == 2
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


async def test_a_roll_out_continues_after_a_killed_operator(world: World) -> None:
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
