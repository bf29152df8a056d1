"""Lost and slow nodes: a terminating pod is force-deleted only if no kubelet can end it."""

import dataclasses
from typing import Final

import pytest

from e2e.kind.apiserver import ApiServer
from e2e.operator.harness.cluster_faults import node, set_node
from e2e.operator.harness.in_process import InProcess
from e2e.operator.harness.pod_status import starting
from e2e.operator.harness.rights import rights_of_the_manifests
from e2e.operator.harness.world import RELEASE, World
from kvasir_operator.cluster.cluster_client import Cluster, Object
from kvasir_operator.cluster.kinds import POD

AN_HOUR: Final = 3600.0


async def test_a_living_node_keeps_its_pods_however_slow(world: World) -> None:
    """The operator's clock is an hour ahead, so the pod's grace period seems to have ended long ago."""
    async with node(world) as name, world.in_process(ahead=AN_HOUR) as operator:
        pod = await leaving(world, operator, name)
        for _ in range(4):
            await operator.reconcile(after=AN_HOUR)
        assert await is_there(world, pod)
        await world.cluster.delete(POD, pod, grace=0)


@pytest.mark.parametrize("status", ["False", None], ids=["not ready", "without a condition"])
async def test_a_node_whose_kubelet_reports_keeps_its_pods(world: World, status: str | None) -> None:
    """A kubelet of a node that is not ready still ends its pods. Only a node that does not report is lost."""
    async with node(world, ready=status) as name, world.in_process(ahead=AN_HOUR) as operator:
        pod = await leaving(world, operator, name)
        for _ in range(4):
            await operator.reconcile(after=AN_HOUR)
        assert await is_there(world, pod)
        await world.cluster.delete(POD, pod, grace=0)


async def test_a_pod_on_a_lost_node_is_released(world: World) -> None:
    async with node(world) as name, world.in_process() as operator:
        pod = await leaving(world, operator, name)
        await operator.reconcile()
        assert await is_there(world, pod)
        await set_node(world, name, "Unknown")
        await operator.until(lambda: is_gone(world, pod), after=2)


async def test_a_pod_on_a_node_that_is_gone_is_released(world: World) -> None:
    async with world.in_process() as operator:
        async with node(world) as name:
            pod = await leaving(world, operator, name)
        await operator.until(lambda: is_gone(world, pod), after=2)


async def test_a_node_lost_for_a_moment_keeps_its_pods(world: World) -> None:
    """A restarting kubelet does not report for some seconds, and its pods continue to run."""
    async with node(world) as name, world.in_process() as operator:
        await world.create()
        await operator.reconcile()
        await world.settled()
        (pod,) = await world.pods("engine")
        await world.bind(pod, name)
        await world.set_pod(pod, starting("engine"))
        await set_node(world, name, "Unknown")
        for _ in range(3):
            await operator.reconcile()
        assert (await world.condition("Ready"))["reason"] == "NodeLost"
        await set_node(world, name, "True")
        await operator.reconcile()
        assert await is_there(world, pod)
        assert (await world.condition("Ready"))["reason"] != "NodeLost"


async def test_a_frontend_on_a_lost_node_is_named(world: World) -> None:
    async with node(world) as name, world.in_process() as operator:
        await world.create()
        await operator.reconcile()
        await world.settled()
        await world.make_ready("engine")
        (pod,) = await world.pods("frontend")
        await world.bind(pod, name)
        await world.set_pod(pod, starting("frontend"))
        await set_node(world, name, "Unknown")
        await operator.reconcile()
        condition = await world.condition("FrontendsReady")
        assert condition["reason"] == "NodeLost"
        assert name in condition["message"]


async def test_an_operator_without_nodes_forces_nothing(world: World, server: ApiServer) -> None:
    """It does not treat nodes that it cannot see as lost."""
    async with rights_of_the_manifests(world, without="nodes") as account, world.in_process() as operator:
        pod = await leaving(world, operator, "a-node-that-nobody-knows")
        blind = await Cluster.connect(str(server.kubeconfig_of(world.namespace, account)))
        release = dataclasses.replace(RELEASE, reads_nodes=False)
        async with World(blind, world.namespace, world.kubeconfig).in_process(release=release) as operator:
            for _ in range(4):
                await operator.reconcile(after=AN_HOUR)
        await blind.close()
        assert await is_there(world, pod)
        assert (await world.condition("Ready"))["reason"] != "NodeLost"
        await world.cluster.delete(POD, pod, grace=0)


async def leaving(world: World, operator: InProcess, name: str) -> Object:
    """Create a service whose engine is on the node and is being deleted."""
    await world.create()
    await operator.reconcile()
    await world.settled()
    (pod,) = await world.pods("engine")
    await world.bind(pod, name)
    await world.set_pod(pod, starting("engine"))
    await world.cluster.delete(POD, pod)
    return pod


async def is_there(world: World, pod: Object) -> bool:
    found = await world.get(POD, pod["metadata"]["name"])
    return found is not None and found["metadata"]["uid"] == pod["metadata"]["uid"]


async def is_gone(world: World, pod: Object) -> bool:
    return not await is_there(world, pod)
