"""The engine pods of a service in tests of roll-outs."""

from collections.abc import Sequence

from e2e.operator.harness.in_process import InProcess
from e2e.operator.harness.pod_status import is_ready
from e2e.operator.harness.world import World
from kvasir_operator.cluster.cluster_client import Object


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


async def remaining(world: World, old: set[str]) -> Sequence[Object]:
    """Return the pods among these that exist and are not terminating."""
    pods = await world.pods("engine")
    return [pod for pod in pods if pod["metadata"]["uid"] in old and "deletionTimestamp" not in pod["metadata"]]


async def only(world: World, old: set[str], count: int) -> bool:
    return len(await remaining(world, old)) == count


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
