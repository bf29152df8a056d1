"""The operator does not touch services of another class, paused services, or namespaces that are being deleted."""

from pathlib import Path

import pytest

from e2e.operator.harness.api_proxy import api_proxy
from e2e.operator.harness.kubelet import kubelet
from e2e.operator.harness.operator_process import OperatorProcess
from e2e.operator.harness.world import NAMESPACE, World
from kvasir_operator.cluster.cluster_client import InvalidError
from kvasir_operator.cluster.kinds import INFERENCE_SERVICE, POD, SERVICE, STATEFUL_SET

MAX_AFTER_DELETION = 60
"""How many requests an operator may send about a service while its namespace is being deleted."""


async def test_a_service_of_another_class_is_left_alone(world: World) -> None:
    await world.create(operatorClass="blue")
    await world.create("plain")
    for name in ("demo", "plain"):
        await world.reconcile(name)
    assert await world.children() == {}
    assert [entry["reason"] for entry in (await world.status())["conditions"]] == ["Pending"]
    assert await world.all_children("plain")
    await world.reconcile(operator_class="blue")
    assert await world.all_children()


async def test_a_class_cannot_be_changed(world: World) -> None:
    await world.create(operatorClass="blue")
    with pytest.raises(InvalidError, match="operatorClass"):
        await world.update(lambda spec: spec.update(operatorClass="green"))


async def test_two_operators_of_two_classes_share_a_namespace(world: World) -> None:
    """Each operator has its own Lease and does not touch the services of the other one."""
    async with world.operator() as plain, world.operator("--operator-class", "blue") as blue:
        await plain.logs("leading")
        await blue.logs("leading")
        await world.create("first")
        await world.create("second", operatorClass="blue")
        for name in ("first", "second"):
            await world.eventually(lambda name=name: world.all_children(name))  # type: ignore[misc]
            await world.eventually(lambda name=name: world.status(name))  # type: ignore[misc]
        assert not says(plain, "second:")
        assert not says(blue, "first:")


async def test_a_paused_service_is_not_changed(world: World) -> None:
    async with world.in_process() as operator, kubelet(world):
        await world.create()
        await operator.until(lambda: has(world, "Progressing", "AsDesired"), after=3)
        await world.update(lambda spec: spec.update(paused=True))
        await operator.reconcile()
        before = await generations(world)
        await world.update(lambda spec: spec["engine"].update(maxModelLen=64, dataParallelSize=3))
        await world.cluster.delete(SERVICE, await world.must_get(SERVICE, "demo-engine"))
        await operator.rounds()
        assert await generations(world) == before
        assert await world.get(SERVICE, "demo-engine") is None
        status = await world.status()
        assert status["observedGeneration"] == (await world.service())["metadata"]["generation"]
        ready, progressing = await world.condition("Ready"), await world.condition("Progressing")
        assert (ready["status"], ready["reason"]) == ("True", "Paused")
        assert (progressing["status"], progressing["reason"]) == ("False", "Paused")

        await world.update(lambda spec: spec.update(paused=False))
        await operator.until(world.all_children)
        assert (await world.stateful_set())["spec"]["replicas"] >= 3
        await operator.until(lambda: has(world, "Progressing", "AsDesired"), after=3)


async def test_a_pause_holds_a_roll_out_where_it_is(world: World) -> None:
    async with world.in_process() as operator:
        await world.create(engine={"dataParallelSize": 2}, rollout={"maxSurge": 0, "maxUnavailable": 1})
        await operator.reconcile()
        await world.settled(ranks=2)
        await world.make_ready("engine")
        old = {pod["metadata"]["uid"] for pod in await world.pods("engine")}
        await world.update(lambda spec: spec["engine"].update(maxModelLen=64))
        await operator.until(lambda: left(world, old, 1))
        await world.update(lambda spec: spec.update(paused=True))

        async def complete() -> bool:
            return len(await world.pods("engine")) == 2

        await world.eventually(complete)
        await world.make_ready("engine")
        await operator.rounds()
        assert await left(world, old, 1)
        await world.update(lambda spec: spec.update(paused=False))
        async with kubelet(world):
            await operator.until(lambda: left(world, old, 0))


async def test_a_paused_service_that_is_new_has_no_children(world: World) -> None:
    await world.create(paused=True)
    await world.reconcile()
    assert await world.children() == {}
    ready = await world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Paused")
    await world.update(lambda spec: spec.update(paused=False))
    await world.reconcile()
    assert await world.all_children()


async def test_a_terminating_namespace_is_left_alone(world: World, tmp_path: Path) -> None:
    """No controller empties the namespace, so it exists until the test ends. Children are deleted one by one."""
    async with (
        api_proxy(world.kubeconfig, tmp_path) as proxy,
        world.operator("--resync", "1h", kubeconfig=proxy.kubeconfig) as operator,
    ):
        await operator.logs("leading")
        await world.create()
        async with kubelet(world):
            await world.eventually(lambda: has(world, "Progressing", "AsDesired"))
        await proxy.settled()
        await world.cluster.delete(NAMESPACE, await going(world))
        before = proxy.asked()
        for kind, name in ((SERVICE, "demo"), (STATEFUL_SET, "demo-engine"), (SERVICE, "demo-engine")):
            await world.cluster.delete(kind, await world.must_get(kind, name))
        for pod in await world.pods("engine"):
            await world.cluster.delete(POD, pod, grace=0)
        await proxy.settled()
        assert proxy.asked() - before < MAX_AFTER_DELETION
        assert not says(operator, "attempt")
        assert not says(operator, "Traceback")
        assert await world.get(SERVICE, "demo") is None


async def test_a_terminating_service_is_left_alone(world: World) -> None:
    """Another client's finalizer keeps the service. Its children are deleted and not created again."""
    await world.create()
    await world.reconcile()
    service = await world.service()
    service["metadata"]["finalizers"] = ["example.com/hold"]
    await world.cluster.replace(INFERENCE_SERVICE, service)
    await world.cluster.delete(INFERENCE_SERVICE, await world.service())
    await world.cluster.delete(SERVICE, await world.must_get(SERVICE, "demo"))
    assert await world.reconcile() is None
    assert await world.get(SERVICE, "demo") is None
    service = await world.service()
    service["metadata"]["finalizers"] = []
    await world.cluster.replace(INFERENCE_SERVICE, service)


async def going(world: World) -> dict[str, dict[str, str]]:
    namespace = await world.cluster.get(NAMESPACE, None, world.namespace)
    return {"metadata": {"name": world.namespace, "namespace": "", "uid": namespace["metadata"]["uid"]}}


async def has(world: World, kind: str, reason: str) -> bool:
    service = await world.service()
    current = service.get("status", {}).get("observedGeneration") == service["metadata"]["generation"]
    return bool(current and (await world.condition(kind)).get("reason") == reason)


async def generations(world: World) -> list[int]:
    return [each["metadata"]["generation"] for each in (await world.stateful_set(), await world.deployment())]


async def left(world: World, old: set[str], count: int) -> bool:
    """Return whether exactly this many of the old pods exist and are not terminating."""
    pods = await world.pods("engine")
    return sum(pod["metadata"]["uid"] in old for pod in pods) == count


def says(operator: OperatorProcess, text: str) -> bool:
    return any(text in line for line in operator.log)
