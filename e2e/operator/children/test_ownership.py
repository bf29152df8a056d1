"""Objects with a child's name that are ours, orphaned or foreign; and changes of our fields by other clients."""

import functools
from typing import Any

import pytest

from e2e.operator.harness.world import World
from kvasir_contract.api import MANAGER
from kvasir_contract.endpoints import HTTP_PORT
from kvasir_operator.cluster.cluster_client import Object
from kvasir_operator.cluster.kinds import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    Kind,
)


async def test_pods_never_run_as_a_foreign_service_account(world: World) -> None:
    """A foreign account may have permissions that the service's author does not have."""
    metadata = {"name": "demo", "namespace": world.namespace}
    foreign = await world.request(
        "POST",
        SERVICE_ACCOUNT.path(world.namespace),
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
    )
    await world.create()
    for _ in range(2):
        await world.reconcile()
    assert await world.get(STATEFUL_SET, "demo-engine") is None
    assert await world.get(DEPLOYMENT, "demo-frontend") is None
    assert await world.get(SERVICE, "demo-engine") is not None
    ready = await world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "NameTaken")
    assert "ServiceAccount demo" in ready["message"]
    assert await world.must_get(SERVICE_ACCOUNT, "demo") == foreign

    await world.cluster.delete(SERVICE_ACCOUNT, foreign)
    await world.reconcile()
    assert await world.all_children()
    assert (await world.condition("Ready"))["reason"] != "NameTaken"


async def test_an_account_that_was_replaced_stops_the_roll_out(world: World) -> None:
    """Running pods are kept, and a change of their template waits."""
    await world.create()
    await world.reconcile()
    before = (await world.stateful_set())["spec"]
    account = await world.must_get(SERVICE_ACCOUNT, "demo")
    await world.cluster.delete(SERVICE_ACCOUNT, account)
    metadata = {"name": "demo", "namespace": world.namespace}
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    await world.request("POST", SERVICE_ACCOUNT.path(world.namespace), body)
    await world.update(lambda spec: spec["engine"].update(maxModelLen=64))
    await world.reconcile()
    assert (await world.stateful_set())["spec"] == before
    assert (await world.condition("Ready"))["reason"] == "NameTaken"
    await world.cluster.delete(SERVICE_ACCOUNT, await world.must_get(SERVICE_ACCOUNT, "demo"))
    await world.reconcile()
    assert "64" in (await world.stateful_set())["spec"]["template"]["spec"]["containers"][0]["args"]


async def test_no_url_is_given_for_a_foreign_service(world: World) -> None:
    metadata = {"name": "demo", "namespace": world.namespace}
    body = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 1}]}}
    foreign = await world.request("POST", SERVICE.path(world.namespace), body)
    await world.create()
    await world.reconcile()
    assert "url" not in await world.status()
    await world.cluster.delete(SERVICE, foreign)
    await world.reconcile()
    assert (await world.status())["url"].startswith("http://demo.")


async def test_orphaned_children_are_adopted_again(world: World) -> None:
    """`kubectl delete --cascade=orphan` and then creating the service again, as for a manual change of the CRD."""
    await world.create()
    await world.reconcile()
    await world.settled()
    before = await world.children()
    await orphan(world)
    service = await world.create()
    for _ in range(2):
        await world.reconcile()
    after = await world.children()
    assert {key: child["metadata"]["uid"] for key, child in after.items()} == {
        key: child["metadata"]["uid"] for key, child in before.items()
    }
    for key, child in after.items():
        owners = child["metadata"].get("ownerReferences", [])
        if key[0] != "Secret":  # which the operator may not change
            assert [owner["uid"] for owner in owners] == [service["metadata"]["uid"]], key
    assert (await world.condition("Ready"))["reason"] != "NameTaken"


@pytest.mark.parametrize("manager", ["kubectl", MANAGER], ids=["applied by another", "created under our name"])
async def test_a_look_alike_is_not_adopted(world: World, manager: str) -> None:
    """With our labels but without an owner, only objects that our field manager applied are ours."""
    await world.create("model", frontend={"replicas": 1})
    await world.reconcile("model")
    ours = await world.must_get(SERVICE, "model-engine")
    labels = {**ours["metadata"]["labels"], "app.kubernetes.io/instance": "demo"}
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "demo-engine", "namespace": world.namespace, "labels": labels},
        "spec": {"ports": [{"port": 1}]},
    }
    query = {"fieldManager": manager}
    made = await world.request("POST", SERVICE.path(world.namespace), body, query)
    await world.create()
    await world.reconcile()
    assert await world.must_get(SERVICE, "demo-engine") == made
    assert (await world.condition("Ready"))["reason"] == "NameTaken"


async def test_children_of_another_service_are_not_adopted(world: World) -> None:
    """An orphan has the labels of the service to which it belonged."""
    await world.create("demo-engine")
    await world.reconcile("demo-engine")
    await orphan(world, "demo-engine")
    before = await world.must_get(SERVICE, "demo-engine")
    await world.create("demo")  # which needs a Service demo-engine, too
    await world.reconcile("demo")
    assert (await world.must_get(SERVICE, "demo-engine")) == before
    assert (await world.condition("Ready"))["reason"] == "NameTaken"


async def test_a_repair_leaves_no_removed_field_behind(world: World) -> None:
    """Apply rejects two ports of one name, so the repair replaces whole fields."""
    await world.create(frontend={"pod": {"nodeSelector": {"zone": "a"}, "priorityClassName": ""}})
    await world.reconcile()

    def other_port(found: Object) -> None:
        container = found["spec"]["template"]["spec"]["containers"][0]
        container["ports"][0]["containerPort"] += 1

    await world.edit(DEPLOYMENT, "demo-frontend", other_port)
    await world.eventually(functools.partial(port_is, world, HTTP_PORT))
    await assert_only_applied(world, DEPLOYMENT, "demo-frontend")

    await world.update(lambda spec: spec["frontend"].update(pod={"labels": {"mine": "x"}}))
    await world.eventually(functools.partial(label_is, world, "x"))
    assert "nodeSelector" not in (await world.deployment())["spec"]["template"]["spec"]
    await world.update(lambda spec: spec["frontend"].pop("pod"))
    await world.eventually(functools.partial(label_is, world, None))
    await assert_only_applied(world, DEPLOYMENT, "demo-frontend")


async def test_an_interrupted_repair_leaves_nothing_behind(world: World) -> None:
    """An operator that was killed after its merge patch owns the fields twice. Earlier releases always did."""
    await world.create(frontend={"pod": {"nodeSelector": {"zone": "a"}}})
    await world.reconcile()
    spec = {"template": {"spec": {"nodeSelector": {"zone": "a", "rack": "b"}}}}
    path = DEPLOYMENT.path(world.namespace, "demo-frontend")
    query = {"fieldManager": MANAGER}
    await world.cluster._request("PATCH", path, query, {"spec": spec}, "application/merge-patch+json")
    await world.update(lambda spec: spec["frontend"].update(pod={"labels": {"mine": "x"}}))
    await world.eventually(functools.partial(label_is, world, "x"))
    await world.reconcile()
    assert "nodeSelector" not in (await world.deployment())["spec"]["template"]["spec"]
    await assert_only_applied(world, DEPLOYMENT, "demo-frontend")


async def test_a_repair_of_a_service_keeps_what_others_add(world: World) -> None:
    await world.create()
    await world.reconcile()

    def drift(found: Object) -> None:
        found["spec"]["ports"][0]["port"] = 8888
        found["metadata"].setdefault("annotations", {})["team"] = "blue"

    await world.edit(SERVICE, "demo", drift)
    await world.reconcile()
    found = await world.must_get(SERVICE, "demo")
    assert [port["port"] for port in found["spec"]["ports"]] == [80]
    assert found["metadata"]["annotations"]["team"] == "blue"
    await assert_only_applied(world, SERVICE, "demo")


async def test_a_stranger_who_removes_our_labels_is_undone(world: World) -> None:
    await world.create()
    await world.reconcile()
    await world.edit(DEPLOYMENT, "demo-frontend", lambda found: found["metadata"].pop("labels"))
    await world.reconcile()
    assert (await world.deployment())["metadata"]["labels"]["app.kubernetes.io/managed-by"] == MANAGER


async def orphan(world: World, name: str = "demo") -> None:
    """Delete the service, and leave its children without an owner."""
    path = INFERENCE_SERVICE.path(world.namespace, name)
    await world.request("DELETE", path, {"propagationPolicy": "Orphan"})

    async def orphaned() -> bool:
        children = await world.children(name)
        return await world.get(INFERENCE_SERVICE, name) is None and not any(
            child["metadata"].get("ownerReferences") for child in children.values()
        )

    await world.eventually(orphaned)


async def port_is(world: World, port: int) -> bool:
    """Reconcile. Return whether the frontends' template has this port yet."""
    await world.reconcile()
    ports = (await world.deployment())["spec"]["template"]["spec"]["containers"][0]["ports"]
    return [each["containerPort"] for each in ports if each["name"] == "http"] == [port]


async def label_is(world: World, value: str | None) -> bool:
    """Reconcile. Return whether the frontends' label `mine` has this value yet."""
    await world.reconcile()
    labels = (await world.deployment())["spec"]["template"]["metadata"]["labels"]
    return bool(labels.get("mine") == value)


async def assert_only_applied(world: World, kind: Kind, name: str) -> None:
    """Wait until our fields are exactly those of the last apply: a conflict with another writer delays it."""
    await world.eventually(functools.partial(only_applied, world, kind, name))


async def only_applied(world: World, kind: Kind, name: str) -> bool:
    """Return whether our fields are those of the last apply; reconcile if not."""
    found: Any = await world.must_get(kind, name)
    operations = [entry["operation"] for entry in found["metadata"]["managedFields"] if entry["manager"] == MANAGER]
    if operations != ["Apply"]:
        await world.reconcile()
    return operations == ["Apply"]
