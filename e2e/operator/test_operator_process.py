"""The operator as a process: watches, roll-outs that outlive it, permissions and errors.

No node runs: tests write the status of ready pods, as a kubelet would.
"""

import asyncio
import functools
import json
import time
from pathlib import Path

import pytest

from e2e.kind.apiserver import ApiServer, apiserver
from e2e.operator.harness.api_proxy import ApiProxy, Request, api_proxy
from e2e.operator.harness.kubelet import kubelet
from e2e.operator.harness.pod_status import ready, starting
from e2e.operator.harness.rights import rights_of_the_manifests
from e2e.operator.harness.world import CHILDREN, World
from kvasir_operator.cluster.cluster_client import Object
from kvasir_operator.cluster.kinds import INFERENCE_SERVICE, SECRET, SERVICE, SERVICE_ACCOUNT, Kind


async def test_a_service_is_created_and_a_deleted_child_replaced(world: World) -> None:
    async with world.operator() as operator:
        await operator.logs("leading")
        await world.create()
        await world.eventually(world.all_children)
        service = await world.must_get(SERVICE, "demo")
        await world.cluster.delete(SERVICE, service)
        await world.eventually(lambda: replaced(world, SERVICE, service))
        assert await operator.stop() == 0


async def test_it_starts_when_services_are_there_already(world: World) -> None:
    await world.create()
    async with world.operator():
        await world.eventually(world.all_children)


async def test_a_child_deleted_without_an_operator_is_replaced(world: World) -> None:
    await world.create()
    async with world.operator("--lease-duration", "3s") as operator:
        await world.eventually(world.all_children)
        await operator.kill()
    service = await world.must_get(SERVICE, "demo-engine")
    await world.cluster.delete(SERVICE, service)
    async with world.operator("--lease-duration", "3s"):
        await world.eventually(lambda: replaced(world, SERVICE, service))


async def test_the_resync_notices_a_deletion_that_the_watch_missed(world: World) -> None:
    """We watch only Services with our labels, so the watch does not report this deletion."""
    await world.create()
    async with world.operator("--resync", "1s"):
        await world.eventually(world.all_children)
        service = await world.must_get(SERVICE, "demo")
        service["metadata"]["labels"] = {}
        path = SERVICE.path(world.namespace, "demo")
        await world.request("PUT", path, service)
        await world.cluster.delete(SERVICE, service)
        await world.eventually(lambda: replaced(world, SERVICE, service))


async def test_it_continues_after_an_outage_of_the_api_server(world: World, server: ApiServer) -> None:
    await world.create()
    async with world.operator() as operator:
        await operator.logs("Loading")
        server.stop()
        server.start()  # in this thread, because the server ends with the thread that started it
        service = await world.must_get(SERVICE, "demo")
        await world.cluster.delete(SERVICE, service)
        await world.eventually(lambda: replaced(world, SERVICE, service))
        assert operator.process.returncode is None


async def test_ranks_roll_one_at_a_time_across_a_killed_operator(world: World) -> None:
    await world.create(engine={"dataParallelSize": 3}, rollout={"maxSurge": 0, "maxUnavailable": 1})
    async with world.operator("--lease-duration", "3s") as operator:
        await operator.logs("leading")
        await world.settled(ranks=3)
        await world.make_ready("engine")
        old = {pod["metadata"]["uid"] for pod in await world.pods("engine")}
        await world.update(lambda spec: spec["engine"].update(maxModelLen=128))
        first = await world.eventually(lambda: newcomer(world, old))
        assert len(await old_ones(world, old)) == 2  # the others wait for it
        await operator.kill()
    async with world.operator("--lease-duration", "3s") as operator:
        await operator.logs("leading")
        await world.eventually(lambda: is_rolling(world))  # perhaps as the first operator wrote it
        assert len(await old_ones(world, old)) == 2
        await world.set_pod(first, ready("engine"))
        for left in (1, 0):
            pod = await world.eventually(lambda: newcomer(world, old))
            assert len(await old_ones(world, old)) == left
            await world.set_pod(pod, ready("engine"))
    arguments = (await world.pods("engine"))[0]["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--max-model-len") + 1] == "128"


async def is_rolling(world: World) -> bool:
    return bool((await world.condition("Progressing")).get("reason") == "RollingOut")


async def test_pods_that_never_got_ready_are_replaced_at_once(world: World) -> None:
    """Another template corrects a mistake in the first one, although no rank is ready."""
    await world.create(engine={"dataParallelSize": 2})
    async with world.operator() as operator:
        await operator.logs("leading")
        await world.settled(ranks=2)
        old = {pod["metadata"]["uid"] for pod in await world.pods("engine")}
        await world.update(lambda spec: spec.update(image="kvasir:other"))

        async def all_new() -> bool:
            pods = await world.pods("engine")
            return len(pods) == 2 and not old & {pod["metadata"]["uid"] for pod in pods}

        await world.eventually(all_new)


async def test_a_service_created_again_at_once_gets_children(world: World) -> None:
    """The first service's children have its UID, and are deleted by the garbage collector."""
    async with world.operator() as operator:
        await operator.logs("leading")
        for _ in range(2):
            service = await world.create()
            await world.eventually(functools.partial(all_owned, world, service["metadata"]["uid"]))
            await world.cluster.delete(INFERENCE_SERVICE, service)
        service = await world.create()
        await world.eventually(functools.partial(all_owned, world, service["metadata"]["uid"]))

        async def told() -> bool:
            return (await world.condition("Ready")).get("reason") == "Loading"

        await world.eventually(told)


async def test_flapping_pods_cause_few_status_writes(world: World, tmp_path: Path) -> None:
    """At most one write in two seconds, because etcd keeps every version of a status."""
    async with (
        api_proxy(world.kubeconfig, tmp_path) as proxy,
        world.operator(kubeconfig=proxy.kubeconfig) as operator,
    ):
        await operator.logs("leading")
        await world.create()
        await world.eventually(world.all_children)
        await world.settled()
        (pod,) = await world.pods("engine")
        before, began = len(status_writes(proxy)), time.monotonic()
        for number in range(40):
            await world.set_pod(pod, ready("engine") if number % 2 else starting("engine"))
            await asyncio.sleep(0.1)  # the test needs some time to pass
        seconds = time.monotonic() - began
        assert 1 <= len(status_writes(proxy)) - before <= seconds / 2 + 1


async def test_an_idle_operator_asks_for_nothing(world: World, tmp_path: Path) -> None:
    """Except for its Lease and its resyncs."""
    async with (
        api_proxy(world.kubeconfig, tmp_path) as proxy,
        world.operator(kubeconfig=proxy.kubeconfig) as operator,
    ):
        await operator.logs("leading")
        async with kubelet(world):
            await world.create(frontend={"apiKeys": {"name": "my-keys"}})
            body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "my-keys"}, "stringData": {"a": "b"}}
            await world.request("POST", SECRET.path(world.namespace), body)

            async def is_ready() -> bool:
                return (await world.condition("Progressing")).get("reason") == "AsDesired"

            await world.eventually(is_ready)
        await proxy.settled(8.0)
        assert "WARNING" not in "\n".join(operator.log)


async def test_the_longest_name_has_all_children(world: World) -> None:
    name = "a" * 45
    async with world.operator(), kubelet(world):
        await world.create(name)
        await world.eventually(lambda: world.all_children(name))

        async def answers() -> bool:
            return (await world.condition("Ready", name)).get("status") == "True"

        await world.eventually(answers)


async def test_without_the_custom_resource_it_ends_with_one_line(world: World) -> None:
    with apiserver() as bare:
        async with world.operator(kubeconfig=bare.kubeconfig) as operator:
            assert await operator.ended() == 2
            (error,) = [line for line in operator.log if "ERROR" in line]
            assert "install it (kubectl apply -f crds/)" in error


async def test_the_rights_of_the_manifests_suffice(world: World, server: ApiServer) -> None:
    """The account of manifests/operator/rbac.yaml can create, repair, roll out and report in all namespaces."""
    async with rights_of_the_manifests(world) as account:
        kubeconfig = server.kubeconfig_of(world.namespace, account)
        for seldom in ("get nodes", "list events"):  # only needed for problems; a refusal is not logged
            server.kubectl(f"--kubeconfig={kubeconfig}", "auth", "can-i", *seldom.split())
        options = ("--namespaces", "", "--lease-namespace", world.namespace)
        await world.create()
        async with world.operator(*options, kubeconfig=kubeconfig) as operator:
            await world.eventually(world.all_children)
            await world.settled()
            service = await world.must_get(SERVICE, "demo")
            service["spec"]["ports"][0]["port"] = 81
            await world.request("PUT", SERVICE.path(world.namespace, "demo"), service)
            await world.eventually(lambda: port_is(world, 80))
            await world.make_ready("engine")
            old = {pod["metadata"]["uid"] for pod in await world.pods("engine")}
            await world.update(lambda spec: spec["engine"].update(maxModelLen=64))
            await world.eventually(lambda: newcomer(world, old))
            assert await world.condition("Ready")
            assert await operator.stop() == 0
            assert not [line for line in operator.log if "WARNING" in line or "ERROR" in line]


async def test_missing_rights_end_it_with_one_line(world: World, server: ApiServer) -> None:
    name = "unprivileged"
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": world.namespace}}
    await world.cluster.create(SERVICE_ACCOUNT, world.namespace, body)
    async with world.operator(kubeconfig=server.kubeconfig_of(world.namespace, name)) as operator:
        assert await operator.ended() == 2
        (error,) = [line for line in operator.log if "ERROR" in line]
        assert "cannot list resource" in error
        assert not any("Traceback" in line for line in operator.log)


@pytest.mark.parametrize("there", [False, True], ids=["no kubeconfig", "no server"])
async def test_without_a_cluster_it_ends_with_one_line(world: World, tmp_path: Path, there: bool) -> None:
    kubeconfig, words = tmp_path / "kubeconfig", "set KUBECONFIG"
    if there:
        old = json.loads(world.kubeconfig.read_text())
        old["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
        kubeconfig.write_text(json.dumps(old))
        words = "does not respond"
    async with world.operator(kubeconfig=kubeconfig) as operator:
        assert await operator.ended() == 2
        (error,) = [line for line in operator.log if "ERROR" in line]
        assert words in error
        assert not any("Traceback" in line for line in operator.log)


def status_writes(proxy: ApiProxy) -> list[Request]:
    return [each for each in proxy.requests if each.path.endswith("/status") and each.method == "PATCH"]


async def all_owned(world: World, uid: str) -> bool:
    children = await world.children()
    owners = [owner["uid"] for child in children.values() for owner in child["metadata"]["ownerReferences"]]
    return owners == [uid] * len(CHILDREN)


async def replaced(world: World, kind: Kind, old: Object) -> bool:
    new = await world.get(kind, old["metadata"]["name"])
    return new is not None and new["metadata"]["uid"] != old["metadata"]["uid"]


async def port_is(world: World, port: int) -> bool:
    found = await world.must_get(SERVICE, "demo")
    return [entry["port"] for entry in found["spec"]["ports"]] == [port]


async def old_ones(world: World, old: set[str]) -> list[Object]:
    return [pod for pod in await world.pods("engine") if pod["metadata"]["uid"] in old]


async def newcomer(world: World, old: set[str]) -> Object | None:
    """Return the new pod that is not ready yet. There is at most one."""
    pods = [pod for pod in await world.pods("engine") if pod["metadata"]["uid"] not in old]
    unready = [pod for pod in pods if not pod["status"].get("conditions")]
    assert len(unready) <= 1
    return unready[0] if unready else None
