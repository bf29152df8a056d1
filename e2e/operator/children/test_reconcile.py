"""Reconciles with a real API server and the controllers of StatefulSets and Deployments.

No node runs: tests write the status of pods that start, fail or serve.
"""

import functools
from typing import Any

import pytest

from e2e.operator.harness.world import CHILDREN, World
from kvasir_operator.cluster.cluster_client import ConflictError, Object
from kvasir_operator.cluster.kinds import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    EVENT,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    Kind,
)

CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")


async def test_all_children_are_made_and_owned(world: World) -> None:
    service = await world.create()
    await world.reconcile()
    children = await world.children()
    assert set(children) == {(kind.kind, "demo" + end) for kind, end in CHILDREN}
    for child in children.values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == (
            "InferenceService",
            service["metadata"]["uid"],
            True,
        )
        assert child["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "kvasir-operator"
        assert child["metadata"]["labels"]["app.kubernetes.io/instance"] == "demo"


async def test_pods_pass_the_restricted_standard(world: World) -> None:
    """The namespace enforces the standard, so existing pods have passed."""
    await world.create(engine={"dataParallelSize": 2})
    await world.reconcile()
    await world.settled(ranks=2)
    await world.eventually(lambda: world.pods("frontend"))


async def test_a_second_reconcile_changes_nothing(world: World) -> None:
    await world.create()
    await world.reconcile()
    await world.settled()
    before = versions(await world.children())
    service = (await world.service())["metadata"]["resourceVersion"]
    await world.reconcile()
    service = (await world.service())["metadata"]["resourceVersion"]
    await world.reconcile()
    assert versions(await world.children()) == before
    assert (await world.service())["metadata"]["resourceVersion"] == service


@pytest.mark.parametrize(("kind", "end"), CHILDREN, ids=lambda value: getattr(value, "kind", value))
async def test_a_deleted_child_comes_back(world: World, kind: Kind, end: str) -> None:
    await world.create()
    await world.reconcile()
    child = await world.child(kind, end)
    assert child is not None
    await world.cluster.delete(kind, child)

    async def replaced() -> bool:
        await world.reconcile()
        new = await world.child(kind, end)
        return new is not None and new["metadata"]["uid"] != child["metadata"]["uid"]

    await world.eventually(replaced)


async def test_new_link_keys_roll_both_workloads(world: World) -> None:
    await world.create()
    await world.reconcile()
    before = await templates(world)
    await world.reconcile()
    assert await templates(world) == before
    await world.cluster.delete(SECRET, await world.must_get(SECRET, await world.link_secret()))
    await world.reconcile()
    after = await templates(world)
    assert all(new != old for new, old in zip(after, before, strict=True))


async def test_drift_is_repaired_and_what_others_add_stays(world: World) -> None:
    await world.create()
    await world.reconcile()

    def drift(service: Object) -> None:
        service["spec"]["ports"][0]["port"] = 8888
        service["metadata"]["labels"]["app.kubernetes.io/component"] = "somebody"
        service["metadata"]["labels"]["team"] = "blue"

    await world.edit(SERVICE, "demo", drift)
    await world.reconcile()
    service = await world.must_get(SERVICE, "demo")
    assert [port["port"] for port in service["spec"]["ports"]] == [80]
    assert service["metadata"]["labels"]["app.kubernetes.io/component"] == "frontend"
    assert service["metadata"]["labels"]["team"] == "blue"


async def test_scale_of_a_child_is_drift(world: World) -> None:
    await world.create(engine={"dataParallelSize": 2})
    await world.reconcile()
    await world.edit(STATEFUL_SET, "demo-engine", lambda found: found["spec"].update(replicas=5))
    await world.reconcile()
    assert (await world.must_get(STATEFUL_SET, "demo-engine"))["spec"]["replicas"] == 2


async def test_a_child_that_lost_its_labels_gets_them_back(world: World) -> None:
    """Without labels it is not listed, but it is still ours."""
    await world.create()
    await world.reconcile()
    await world.edit(SERVICE, "demo-engine", lambda found: found["metadata"].pop("labels"))
    await world.reconcile()
    service = await world.must_get(SERVICE, "demo-engine")
    assert service["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "kvasir-operator"
    assert (await world.condition("Ready"))["reason"] != "NameTaken"


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
async def test_somebody_elses_object_is_left_alone_and_reported(
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


async def test_what_is_no_longer_desired_is_pruned_and_only_that(world: World) -> None:
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


async def test_scale_subresource_sets_the_ranks(world: World) -> None:
    """`kubectl scale` and an HPA use the scale subresource."""
    await world.create(engine={"dataParallelSize": 2})
    await world.reconcile()
    for ranks in (1, 3, 2):
        path = INFERENCE_SERVICE.path(world.namespace, "demo", "scale")
        found = await world.request("GET", path)
        found["spec"]["replicas"] = ranks
        await world.request("PUT", path, found)
        await world.eventually(functools.partial(scaled, world, ranks))
        await world.settled(ranks=ranks)
        await world.reconcile()
        found = await world.request("GET", path)
        assert found["status"]["replicas"] == ranks
        assert "app.kubernetes.io/component=engine" in found["status"]["selector"]
        assert (await world.service())["status"]["engines"]["desired"] == ranks


async def test_a_child_that_the_api_server_refuses_is_an_invalid_spec(world: World) -> None:
    """Kubernetes checks fields outside our schema when the child is applied."""
    await world.create(frontend={"pod": {"affinity": {"nodeAffinity": {"requiredDuringScheduling": 1}}}})
    await world.create("bad", engine={"resourceName": "", "pod": {"nodeSelector": {"not a label": "x"}}})
    await world.reconcile("bad")
    ready = await world.condition("Ready", "bad")
    assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
    assert "StatefulSet bad-engine" in ready["message"]
    assert "nodeSelector" in ready["message"]
    assert await world.get(DEPLOYMENT, "bad-frontend") is not None


async def test_api_keys_that_do_not_exist_are_named_until_they_do(world: World) -> None:
    await world.create(frontend={"apiKeys": {"name": "my-keys"}})
    await world.reconcile()
    ready = await world.condition("Ready")
    assert ready["reason"] == "InvalidSpec"
    assert "Secret my-keys, which does not exist" in ready["message"]
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "my-keys"}, "stringData": {"a": "b"}}
    await world.request("POST", SECRET.path(world.namespace), body)
    await world.reconcile()
    assert (await world.condition("Ready"))["reason"] == "Loading"


async def test_deleting_the_service_leaves_nothing(world: World) -> None:
    await world.create()
    await world.reconcile()
    await world.settled()
    await world.cluster.delete(INFERENCE_SERVICE, await world.service())
    assert await world.reconcile() is None

    async def gone() -> bool:
        return not await world.children() and not await world.pods("engine") and not await world.pods("frontend")

    await world.eventually(gone)


async def test_the_operator_leaves_no_mark_on_the_service(world: World) -> None:
    created = await world.create()
    await world.reconcile()
    metadata = (await world.service())["metadata"]
    assert "finalizers" not in metadata
    assert "annotations" not in metadata
    assert metadata["generation"] == created["metadata"]["generation"]


async def test_events_tell_what_was_made(world: World) -> None:
    await world.create()
    await world.reconcile()
    events = await world.cluster.list(EVENT, world.namespace)
    messages = {event["message"] for event in events if event["involvedObject"]["kind"] == "InferenceService"}
    assert "StatefulSet demo-engine" in messages
    assert not any("server.secret" in message for message in messages)


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


async def scaled(world: World, ranks: int) -> bool:
    """Reconcile. Return whether the StatefulSet has this many ranks."""
    await world.reconcile()
    return bool((await world.stateful_set())["spec"]["replicas"] == ranks)


def essence(resource: Object) -> Object:
    """Return the fields that an operator would change. A controller writes the status meanwhile."""
    metadata = {field: resource["metadata"].get(field) for field in ("uid", "labels", "ownerReferences")}
    return {"metadata": metadata, "spec": resource["spec"]}


def versions(children: dict[tuple[str, str], Object]) -> dict[tuple[str, str], str]:
    return {key: child["metadata"]["resourceVersion"] for key, child in children.items()}


async def templates(world: World) -> list[dict[str, Any]]:
    workloads = [
        await world.must_get(STATEFUL_SET, "demo-engine"),
        await world.must_get(DEPLOYMENT, "demo-frontend"),
    ]
    return [workload["spec"]["template"]["metadata"] for workload in workloads]
