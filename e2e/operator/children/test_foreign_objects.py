"""Objects with a child's name that do not belong to the service are neither changed nor deleted."""

import pytest

from e2e.operator.harness.world import CHILDREN, World
from kvasir_operator.cluster.cluster_client import ConflictError, Object
from kvasir_operator.cluster.kinds import (
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    SERVICE,
    STATEFUL_SET,
    Kind,
)


@pytest.mark.parametrize("labelled", [False, True], ids=["unlabelled", "with our labels"])
@pytest.mark.parametrize(
    ("kind", "name", "spec"),
    [
        (SERVICE, "demo", {"ports": [{"port": 1234}]}),
        (NETWORK_POLICY, "demo-engine", {"podSelector": {}}),
        (DISRUPTION_BUDGET, "demo-frontend", {"minAvailable": 3}),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
async def test_a_foreign_object_is_left_alone_and_reported(
    world: World, kind: Kind, name: str, spec: Object, labelled: bool
) -> None:
    labels = {"app.kubernetes.io/instance": "demo", "app.kubernetes.io/managed-by": "kvasir-operator"}
    metadata = {"name": name, "namespace": world.namespace, "labels": labels if labelled else {}}
    foreign = await world.cluster.create(
        kind,
        world.namespace,
        {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec},
    )
    await world.create()
    await world.reconcile()
    await world.reconcile()
    assert essence(await world.must_get(kind, name)) == essence(foreign)
    ready = await world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "NameTaken")
    assert f"{kind.kind} {name} already exists" in ready["message"]
    children = await world.children()
    assert len(children) == len(CHILDREN)  # the other children are applied
    generation = children["StatefulSet", "demo-engine"]["metadata"]["generation"]
    await world.reconcile()
    assert (await world.must_get(STATEFUL_SET, "demo-engine"))["metadata"]["generation"] == generation

    await world.cluster.delete(kind, foreign)
    await world.reconcile()
    assert (await world.must_get(kind, name))["metadata"]["uid"] != foreign["metadata"]["uid"]
    assert (await world.condition("Ready"))["reason"] != "NameTaken"


async def test_children_of_an_older_service_are_not_taken_over(world: World) -> None:
    await world.create()
    await world.reconcile()
    stateful_set = await world.must_get(STATEFUL_SET, "demo-engine")
    old = {**stateful_set["metadata"]["ownerReferences"][0], "uid": "11111111-1111-1111-1111-111111111111"}
    metadata = {
        "name": "other-engine",
        "namespace": world.namespace,
        "labels": {**stateful_set["metadata"]["labels"], "app.kubernetes.io/instance": "other"},
        "ownerReferences": [{**old, "name": "other", "kind": "Nothing", "apiVersion": "example.com/v1"}],
    }
    spec = stateful_set["spec"]
    await world.cluster.create(
        STATEFUL_SET,
        world.namespace,
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": {**spec, "replicas": 0}},
    )
    await world.create("other", engine={"dataParallelSize": 3})
    await world.reconcile("other")
    assert (await world.must_get(STATEFUL_SET, "other-engine"))["spec"]["replicas"] == 0
    assert (await world.condition("Ready", "other"))["reason"] == "NameTaken"


async def test_only_own_undesired_objects_are_pruned(world: World) -> None:
    await world.create()
    await world.reconcile()
    ours = await world.must_get(SERVICE, "demo")
    for name, owners in (("demo-old", ours["metadata"]["ownerReferences"]), ("demo-foreign", [])):
        metadata = {
            "name": name,
            "namespace": world.namespace,
            "labels": ours["metadata"]["labels"],
            "ownerReferences": owners,
        }
        body = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 1}]}}
        await world.cluster.create(SERVICE, world.namespace, body)
    await world.reconcile()
    assert await world.get(SERVICE, "demo-old") is None
    assert await world.get(SERVICE, "demo-foreign") is not None
    assert len(await world.children()) == len(CHILDREN)


async def test_two_reconciles_at_once_do_not_overwrite_a_newer_object(world: World) -> None:
    """An apply names the UID of the object that was read, so a successor of the same name is a conflict."""
    await world.create()
    await world.reconcile()
    service = await world.must_get(SERVICE, "demo")
    metadata = {"name": "demo", "namespace": world.namespace, "uid": "11111111-1111-1111-1111-111111111111"}
    with pytest.raises(ConflictError):
        await world.cluster.apply(
            SERVICE, {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {}}, force=True
        )
    assert await world.must_get(SERVICE, "demo") == service


def essence(resource: Object) -> Object:
    """Return the fields that an operator would change. A controller writes the status meanwhile."""
    metadata = {field: resource["metadata"].get(field) for field in ("uid", "labels", "ownerReferences")}
    return {"metadata": metadata, "spec": resource["spec"]}
