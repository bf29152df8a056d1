"""Reconciles with a real API server and the controllers of StatefulSets and Deployments.

No node runs: tests write the status of pods that start, fail or serve.
"""

import functools
from typing import Any

import pytest

from e2e.operator.harness.world import CHILDREN, World
from kvasir_operator.cluster.cluster_client import Object
from kvasir_operator.cluster.kinds import (
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    Kind,
)

CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")


async def test_all_children_are_created_and_owned(world: World) -> None:
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


def set_length(length: int, spec: dict[str, Any]) -> None:
    spec["engine"].update(maxModelLen=length)


async def test_an_autoscaler_may_scale_the_frontends(world: World) -> None:
    await world.create()
    await world.reconcile()
    assert (await world.deployment())["spec"]["replicas"] == 1
    for replicas in (4, 2):
        await scale_frontends(world, replicas)
        await world.update(functools.partial(set_length, 64 * replicas))
        await world.reconcile()
        deployment = await world.deployment()
        assert deployment["spec"]["replicas"] == replicas
        assert str(64 * replicas) in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        assert (await world.status())["frontends"]["desired"] == replicas
    await scale_frontends(world, 0)
    await world.reconcile()
    assert (await world.deployment())["spec"]["replicas"] == 1


async def test_a_number_of_frontends_can_be_set_and_unset(world: World) -> None:
    await world.create(frontend={"replicas": 3})
    await world.reconcile()
    await scale_frontends(world, 5)
    await world.reconcile()
    assert (await world.deployment())["spec"]["replicas"] == 3
    await world.update(lambda spec: spec["frontend"].pop("replicas"))
    await world.reconcile()
    assert (await world.deployment())["spec"]["replicas"] == 1
    await scale_frontends(world, 5)
    await world.reconcile()
    assert (await world.deployment())["spec"]["replicas"] == 5


async def scale_frontends(world: World, replicas: int) -> None:
    """Do what a HorizontalPodAutoscaler does."""
    path = DEPLOYMENT.path(world.namespace, "demo-frontend", "scale")
    found = await world.request("GET", path)
    found["spec"]["replicas"] = replicas
    del found["metadata"]["resourceVersion"]  # the Deployment controller may write in between
    await world.request("PUT", path, found)


async def test_a_child_that_lost_its_labels_gets_them_back(world: World) -> None:
    """Without labels it is not listed, but it is still ours."""
    await world.create()
    await world.reconcile()
    await world.edit(SERVICE, "demo-engine", lambda found: found["metadata"].pop("labels"))
    await world.reconcile()
    service = await world.must_get(SERVICE, "demo-engine")
    assert service["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "kvasir-operator"
    assert (await world.condition("Ready"))["reason"] != "NameTaken"


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


async def test_events_report_created_objects(world: World) -> None:
    await world.create()
    await world.reconcile()
    events = await world.cluster.list(EVENT, world.namespace)
    messages = {event["message"] for event in events if event["involvedObject"]["kind"] == "InferenceService"}
    assert "Created StatefulSet demo-engine" in messages
    assert not any("server.secret" in message for message in messages)


async def scaled(world: World, ranks: int) -> bool:
    """Reconcile. Return whether the StatefulSet has this many ranks."""
    await world.reconcile()
    return bool((await world.stateful_set())["spec"]["replicas"] == ranks)


def versions(children: dict[tuple[str, str], Object]) -> dict[tuple[str, str], str]:
    return {key: child["metadata"]["resourceVersion"] for key, child in children.items()}


async def templates(world: World) -> list[dict[str, Any]]:
    workloads = [
        await world.must_get(STATEFUL_SET, "demo-engine"),
        await world.must_get(DEPLOYMENT, "demo-frontend"),
    ]
    return [workload["spec"]["template"]["metadata"] for workload in workloads]
