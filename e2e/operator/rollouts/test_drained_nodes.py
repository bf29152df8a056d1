"""Cordoned nodes: pods move to another node before the drain evicts them, and budgets limit evictions."""

import dataclasses
from typing import Final

import pytest

from e2e.operator.harness.cluster_faults import cordon, node, taint
from e2e.operator.harness.engine_pods import there
from e2e.operator.harness.in_process import InProcess
from e2e.operator.harness.kubelet import kubelet
from e2e.operator.harness.pod_status import is_ready, ready, starting, unschedulable
from e2e.operator.harness.world import RELEASE, World
from kvasir_operator.cluster.cluster_client import ClusterError, Object
from kvasir_operator.cluster.kinds import DISRUPTION_BUDGET, POD, Kind

AN_HOUR: Final = 3600.0


async def test_a_cordoned_rank_moves_by_a_surge_first(world: World) -> None:
    async with node(world, "old") as old, node(world, "new") as new, world.in_process() as operator:
        await world.create()
        await operator.reconcile()
        await world.settled()
        (pod,) = await world.pods("engine")
        await run_on(world, pod, old, "engine")
        (frontend,) = await world.pods("frontend")
        await run_on(world, frontend, new, "frontend")
        await operator.reconcile()
        await drain(world, operator, old)
        await operator.until(lambda: there(world, "demo-engine-1"))
        await operator.rounds()
        assert is_ready(await world.pod(pod["metadata"]["name"]))
        await run_on(world, await world.pod("demo-engine-1"), new, "engine")
        await operator.until(lambda: is_leaving(world, pod), after=2)
        assert is_ready(await world.pod("demo-engine-1"))
        async with kubelet(world, new):
            await operator.until(lambda: moved(world, new, {"demo-engine-0"}), after=2)
        assert (await world.stateful_set())["spec"]["replicas"] == 1


async def test_only_ranks_of_the_drained_node_move(world: World) -> None:
    async with node(world, "old") as old, node(world, "new") as new, world.in_process() as operator:
        await world.create(engine={"dataParallelSize": 3})
        await operator.reconcile()
        await world.settled(ranks=3)
        for pod, name in zip(await world.pods("engine"), (new, old, new), strict=True):
            await run_on(world, pod, name, "engine")
        (frontend,) = await world.pods("frontend")
        await run_on(world, frontend, new, "frontend")
        await operator.reconcile()
        before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await world.pods("engine")}
        await drain(world, operator, old)
        async with kubelet(world, new):

            async def done() -> bool:
                pods = await world.pods("engine")
                assert sum(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods) >= 3
                return await moved(world, new, {"demo-engine-0", "demo-engine-1", "demo-engine-2"})

            await operator.until(done, after=2)
        after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await world.pods("engine")}
        assert {name for name in before if before[name] != after[name]} == {"demo-engine-1"}


async def test_a_cordoned_frontend_moves_without_a_gap(world: World) -> None:
    async with node(world, "old") as old, node(world, "new") as new, world.in_process() as operator:
        await world.create()
        await operator.reconcile()
        await world.settled()
        (frontend,) = await world.pods("frontend")
        await run_on(world, frontend, old, "frontend")
        (engine,) = await world.pods("engine")
        await run_on(world, engine, new, "engine")
        await operator.reconcile()
        await drain(world, operator, old)

        async def two() -> bool:
            return len(await world.pods("frontend")) == 2

        await operator.until(two)
        await operator.rounds()
        assert is_ready(await world.pod(frontend["metadata"]["name"]))
        (other,) = [pod for pod in await world.pods("frontend") if not pod["spec"].get("nodeName")]
        await run_on(world, other, new, "frontend")
        await operator.until(lambda: is_leaving(world, frontend), after=2)
        assert is_ready(await world.pod(other["metadata"]["name"]))
        await world.cluster.delete(POD, frontend, grace=0)

        async def one() -> bool:
            pods = [pod for pod in await world.pods("frontend") if "deletionTimestamp" not in pod["metadata"]]
            return len(pods) == 1 and (await world.deployment())["spec"]["replicas"] == 1

        async with kubelet(world, new):
            await operator.until(one, after=2)


async def test_a_cordon_that_is_lifted_ends_the_surge(world: World) -> None:
    async with node(world, "old") as old, world.in_process() as operator:
        await world.create()
        await operator.reconcile()
        await world.settled()
        (pod,) = await world.pods("engine")
        await run_on(world, pod, old, "engine")
        await operator.reconcile()
        await drain(world, operator, old)
        await operator.until(lambda: there(world, "demo-engine-1"))
        await drain(world, operator, old, drained=False)

        async def ended() -> bool:
            return [each["metadata"]["uid"] for each in await world.pods("engine")] == [pod["metadata"]["uid"]]

        await operator.until(ended)
        assert (await world.stateful_set())["spec"]["replicas"] == 1


@pytest.mark.parametrize("how", ["cordon", "karpenter.sh/disrupted"])
async def test_an_operator_process_moves_ranks_off_a_drained_node(world: World, how: str) -> None:
    """It watches the nodes, so no other trigger is needed."""
    async with node(world, "old") as old, node(world, "new") as new:
        options = ("--namespaces", "", "--lease-namespace", world.namespace)
        async with world.operator(*options) as operator:
            await operator.logs("leading")
            await world.create()
            async with kubelet(world, old):
                await world.eventually(lambda: moved(world, old, {"demo-engine-0"}))
            await (cordon(world, old) if how == "cordon" else taint(world, old, how))
            async with kubelet(world, new):
                await world.eventually(lambda: moved(world, new, {"demo-engine-0"}))


@pytest.mark.parametrize(("ranks", "expected"), [(1, 0), (2, 1)])
async def test_a_budget_never_lets_all_ranks_be_evicted(world: World, ranks: int, expected: int) -> None:
    """The test uses the eviction API, as kubectl drain does."""
    async with world.in_process() as operator:
        await world.create(engine={"dataParallelSize": ranks}, frontend={"replicas": ranks})
        await operator.reconcile()
        await world.settled(ranks=ranks)
        for component in ("engine", "frontend"):
            await world.make_ready(component)
            budget = await world.must_get(DISRUPTION_BUDGET, f"demo-{component}")
            assert budget["spec"]["maxUnavailable"] == expected
            await world.eventually(lambda: counted(world, ranks))
            evicted = [await evict(world, pod) for pod in await world.pods(component)]
            assert sum(evicted) == expected


async def test_a_budget_does_not_wait_for_a_blind_operator(world: World) -> None:
    """An operator that may not read nodes would never move the only rank, and the drain would never end."""
    await world.create()
    await world.reconcile(release=dataclasses.replace(RELEASE, reads_nodes=False))
    for component in ("engine", "frontend"):
        budget = await world.must_get(DISRUPTION_BUDGET, f"demo-{component}")
        assert budget["spec"]["maxUnavailable"] == 1


async def test_a_broken_pod_does_not_hold_up_a_drain(world: World) -> None:
    await world.create()
    await world.reconcile()
    await world.settled()
    (pod,) = await world.pods("engine")
    await world.set_pod(pod, {**starting("engine"), "phase": "Running"})
    await world.eventually(lambda: counted(world, 1))
    assert await evict(world, pod)


async def test_a_cordon_without_room_keeps_the_ranks(world: World) -> None:
    """A deleted rank on a cordoned node would not make room for another pod."""
    async with node(world, "old") as old, world.in_process() as operator:
        await world.create(engine={"dataParallelSize": 2})
        await operator.reconcile()
        await world.settled(ranks=2)
        for pod in await world.pods("engine"):
            await run_on(world, pod, old, "engine")
        await operator.reconcile()
        await drain(world, operator, old)
        await operator.until(lambda: there(world, "demo-engine-2"))
        await world.set_pod(await world.pod("demo-engine-2"), unschedulable("1 node is unschedulable"))
        for _ in range(4):
            await operator.reconcile(after=AN_HOUR)
        pods = await world.pods("engine")
        staying = [pod for pod in pods if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]
        assert len(staying) == 2


async def run_on(world: World, pod: Object, name: str, component: str) -> None:
    await world.bind(pod, name)
    await world.set_pod(pod, ready(component))


async def drain(world: World, operator: InProcess, name: str, *, drained: bool = True) -> None:
    """Cordon the node, and notify the operator as its watch does."""
    await cordon(world, name, drained)
    operator.cordons.node_changed(name, {"spec": {"unschedulable": drained}})


async def moved(world: World, name: str, engines: set[str]) -> bool:
    """Return whether exactly these engines and one frontend exist, and all of them run on the node."""
    pods = [*await world.pods("engine"), *await world.pods("frontend")]
    names = {pod["metadata"]["name"] for pod in await world.pods("engine")}
    return (
        names == engines
        and len(pods) == len(engines) + 1
        and all(is_ready(pod) and pod["spec"].get("nodeName") == name for pod in pods)
    )


async def evict(world: World, pod: Object) -> bool:
    name = pod["metadata"]["name"]
    eviction = Kind("policy/v1", "Eviction", f"pods/{name}/eviction")
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    try:
        await world.request("POST", f"{POD.path(world.namespace, name)}/eviction", {**body, "kind": eviction.kind})
    except ClusterError as error:
        if error.status != 429:
            raise
        return False
    return True


async def counted(world: World, pods: int) -> bool:
    """Return whether the controller of the budgets has counted the pods."""
    budgets = await world.cluster.list(DISRUPTION_BUDGET, world.namespace)
    return all(
        budget.get("status", {}).get("expectedPods") == pods
        and budget["status"]["observedGeneration"] == budget["metadata"]["generation"]
        for budget in budgets
    )


async def is_leaving(world: World, pod: Object) -> bool:
    found = await world.get(POD, pod["metadata"]["name"])
    gone = found is None or found["metadata"]["uid"] != pod["metadata"]["uid"]
    return gone or "deletionTimestamp" in (found or pod)["metadata"]
