"""An exposed service on a real API server: Ingress, HTTPRoute, and a cluster without the Gateway API."""

from typing import Any

from e2e.kind import cache
from e2e.kind.apiserver import ApiServer
from e2e.kind.build.binaries import gateway_api_crds
from e2e.kind.progress import Log
from e2e.operator.harness.rights import rights_of_the_manifests
from e2e.operator.harness.world import World
from kvasir_operator.cluster.cluster_client import Object
from kvasir_operator.cluster.kinds import HTTP_ROUTE, INGRESS, SECRET, Kind

HOST = "llm.example.com"
GATEWAY: dict[str, Any] = {"host": HOST, "path": "/demo", "gateway": {"name": "public", "namespace": "infra"}}


async def test_an_ingress_lives_as_long_as_the_field(world: World, server: ApiServer) -> None:
    """With an operator process that has only the permissions of the manifests."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "llm-tls", "namespace": world.namespace}}
    await world.cluster.create(SECRET, world.namespace, secret)
    await world.create(expose={"host": HOST, "tls": {"secretName": "llm-tls"}, "ingressClassName": "nginx"})
    async with rights_of_the_manifests(world) as account:
        kubeconfig = server.kubeconfig_of(world.namespace, account)
        async with world.operator(kubeconfig=kubeconfig) as operator:
            await operator.logs("leading")
            await world.eventually(lambda: world.get(INGRESS, "demo"))
            await set_address(world, "192.0.2.1")
            await world.eventually(lambda: is_exposed(world))
            assert (await world.status())["urls"]["outside"] == f"https://{HOST}/v1"
            before = await world.must_get(INGRESS, "demo")
            await world.cluster.delete(INGRESS, before)
            await world.eventually(lambda: is_replaced(world, before))
            await world.update(lambda spec: spec.pop("expose"))
            await world.eventually(lambda: is_gone(world))


async def test_a_route_comes_when_the_gateway_api_does(lone_world: tuple[World, ApiServer]) -> None:
    world, server = lone_world
    await world.create(expose=GATEWAY)
    async with world.in_process() as operator:
        assert await operator.reconcile() is not None
        await operator.reconcile()
        assert (await exposed(world))["reason"] == "RouteRefused"
        for file in gateway_api_crds(Log(cache.logs() / "gateway-api.log")):
            server.kubectl("apply", "--server-side", "-f", str(file))
        await operator.until(lambda: world.get(HTTP_ROUTE, "demo"), after=3.0)
        before = await version(world)
        await operator.reconcile()
        assert await version(world) == before
        assert (await exposed(world))["reason"] == "AwaitingAddress"
        for accepted, reason in (("False", "NotAllowedByListeners"), ("True", "Accepted")):
            await set_accepted(world, accepted, reason)
            await operator.reconcile()
            assert (await exposed(world))["status"] == accepted
        await world.update(lambda spec: spec.pop("expose"))
        await operator.reconcile()
        assert await world.get(HTTP_ROUTE, "demo") is None


async def version(world: World) -> str:
    return str((await world.must_get(HTTP_ROUTE, "demo"))["metadata"]["resourceVersion"])


async def exposed(world: World) -> Object:
    return await world.condition("Exposed")


async def is_exposed(world: World) -> bool:
    return (await exposed(world)).get("status") == "True"


async def is_replaced(world: World, before: Object) -> bool:
    found = await world.get(INGRESS, "demo")
    return found is not None and found["metadata"]["uid"] != before["metadata"]["uid"]


async def is_gone(world: World) -> bool:
    return await world.get(INGRESS, "demo") is None


async def set_address(world: World, address: str) -> None:
    """Write the Ingress' status as its controller does."""
    await _set_status(world, INGRESS, {"loadBalancer": {"ingress": [{"ip": address}]}})


async def set_accepted(world: World, status: str, reason: str) -> None:
    """Write the HTTPRoute's status as a Gateway's controller does."""
    generation = (await world.must_get(HTTP_ROUTE, "demo"))["metadata"]["generation"]
    entry = {
        "type": "Accepted",
        "status": status,
        "reason": reason,
        "message": "",
        "observedGeneration": generation,
        "lastTransitionTime": "2026-11-28T12:00:00Z",
    }
    parent = {
        "parentRef": {"name": "public", "namespace": "infra"},
        "controllerName": "example.com/gateway",
        "conditions": [entry],
    }
    await _set_status(world, HTTP_ROUTE, {"parents": [parent]})


async def _set_status(world: World, kind: Kind, status: Object) -> None:
    found = await world.must_get(kind, "demo")
    await world.request("PUT", kind.path(world.namespace, "demo", "status"), {**found, "status": status})
