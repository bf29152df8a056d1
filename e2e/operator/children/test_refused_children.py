"""If the API server rejects a child, the status reports it and everything else continues.

Quotas and admission policies return 403 or 422. Server-side apply returns 500 for a field that does not exist.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.kind.apiserver import apiserver
from e2e.operator.harness.api_proxy import api_proxy
from e2e.operator.harness.cluster_faults import QUOTA, broken_webhook, denied, set_quota
from e2e.operator.harness.in_process import STATUS_PAUSE
from e2e.operator.harness.world import CHILDREN, CRD, World, install
from kvasir_operator.cluster.cluster_client import Cluster, Object
from kvasir_operator.cluster.kinds import EVENT

ENGINE, FRONTEND = "StatefulSet demo-engine", "Deployment demo-frontend"
MAX_REQUESTS = 400
"""How many requests an operator may send in about a minute with a rejected child."""
TYPO: Object = {"volumes": [{"name": "v", "emptyDirr": {}}]}
MISSPELT_AFFINITY: Object = {"affinity": {"nodeAffinityy": {}}}


async def test_a_quota_on_services_is_in_the_status_until_lifted(world: World) -> None:
    quota = await set_quota(world, services=0)
    await world.create()
    await world.reconcile()
    await assert_refused(world, {"Refused"}, "Service demo", "exceeded quota")
    assert await others_are_applied(world, {"demo", "demo-frontend", "demo-engine"}, "Service")
    assert "url" not in await world.status()

    await world.cluster.delete(QUOTA, quota)
    assert await recovered(world)


@pytest.mark.parametrize("reason", ["Forbidden", "Invalid"])
async def test_a_policy_that_denies_is_in_the_status(world: World, reason: str) -> None:
    await world.create()
    async with denied(world, "apps", "statefulsets", reason=reason):
        await world.reconcile()
        await assert_refused(world, {"Refused", "InvalidSpec"}, ENGINE, "the test denies it")
        assert await others_are_applied(world, {"demo-engine"}, "StatefulSet")
    assert await recovered(world)


async def test_a_policy_that_denies_changes_keeps_running_pods(world: World) -> None:
    await world.create()
    await world.reconcile()
    before = await world.stateful_set()
    async with denied(world, "apps", "statefulsets"):
        await world.update(lambda spec: spec["engine"].update(maxModelLen=64, dataParallelSize=2))
        await world.update(lambda spec: spec["frontend"].update(replicas=3))
        await world.reconcile()
        await assert_refused(world, {"Refused"}, ENGINE, "the test denies it")
        assert (await world.stateful_set())["spec"] == before["spec"]
        assert (await world.deployment())["spec"]["replicas"] == 3
        status = await world.status()
        assert status["observedGeneration"] == (await world.service())["metadata"]["generation"]
    assert await recovered(world)
    assert (await world.stateful_set())["spec"]["replicas"] >= 2


async def test_a_webhook_that_is_down_is_not_a_mistake_in_the_spec(world: World) -> None:
    """The API server returns 500, as for an unknown field, but the spec needs no correction."""
    await world.create()
    async with broken_webhook(world, "apps", "statefulsets"):
        await world.reconcile()
        await assert_refused(world, {"Refused"}, ENGINE, "failed calling webhook")
        assert await others_are_applied(world, {"demo-engine"}, "StatefulSet")
    assert await recovered(world)


@pytest.mark.parametrize(
    ("pod", "words"),
    [(TYPO, "emptyDirr"), (MISSPELT_AFFINITY, "nodeAffinityy")],
    ids=["volumes", "affinity"],
)
async def test_a_typo_in_a_free_form_field_is_in_the_status(world: World, pod: Object, words: str) -> None:
    await world.create(engine={"pod": pod})
    await world.reconcile()
    await assert_refused(world, {"InvalidSpec"}, ENGINE, words)
    assert await others_are_applied(world, {"demo-engine"}, "StatefulSet")

    await world.update(lambda spec: spec["engine"].pop("pod"))
    assert await recovered(world)


async def test_a_typo_does_not_end_a_service_that_runs(world: World) -> None:
    """The change is not reported as done: Progressing of the newest generation is not AsDesired."""
    await world.create()
    await world.reconcile()
    await world.settled()
    (pod,) = await world.pods("engine")
    await world.update(lambda spec: spec["frontend"].update(pod=TYPO))
    await world.reconcile()
    await assert_refused(world, {"InvalidSpec"}, FRONTEND, "emptyDirr")
    (same,) = await world.pods("engine")
    assert same["metadata"]["uid"] == pod["metadata"]["uid"]
    await world.update(lambda spec: spec["frontend"].pop("pod"))
    assert await recovered(world)


async def test_a_second_mount_past_an_older_schema_is_reported(tmp_path: Path) -> None:
    async with world_of(tmp_path, without_rules) as world:
        volume = {"name": "mine", "emptyDir": {}}
        mount = {"name": "mine", "mountPath": "/tmp"}
        await world.create(engine={"pod": {"volumes": [volume], "volumeMounts": [mount]}})
        await world.reconcile()
        ready = await world.condition("Ready")
        assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
        assert "/tmp" in ready["message"]
        await world.update(lambda spec: spec["engine"].pop("pod"))
        assert await recovered(world)


async def test_a_status_past_an_older_schema_is_written(tmp_path: Path) -> None:
    """The CRD of a namespaced installation belongs to the administrator and may be older than the operator."""
    async with world_of(tmp_path, without_new_status_fields) as world:
        await world.create()
        for _ in range(2):
            await world.reconcile()
        status = await world.status()
        assert status["conditions"]
        assert status["observedGeneration"] == (await world.service())["metadata"]["generation"]
        assert "release" not in status


async def test_two_refusals_are_both_reported(world: World) -> None:
    await world.create(engine={"pod": TYPO}, frontend={"pod": MISSPELT_AFFINITY})
    await world.reconcile()
    messages = " ".join([(await world.condition("Ready"))["message"], *await event_messages(world)])
    assert ENGINE in messages
    assert FRONTEND in messages


async def test_an_operator_process_reports_a_refusal_by_itself(world: World, tmp_path: Path) -> None:
    """Neither the refusal nor the repair causes an event in the namespace."""
    quota = await set_quota(world, services=0)
    async with api_proxy(world.kubeconfig, tmp_path) as proxy:
        await world.create()
        async with world.operator("--resync", "1h", kubeconfig=proxy.kubeconfig) as operator:
            await world.eventually(lambda: has_reason(world, "Refused"), patience=15)
            assert await others_are_applied(world, {"demo", "demo-frontend", "demo-engine"}, "Service")
            await world.cluster.delete(QUOTA, quota)
            await world.eventually(world.all_children, patience=60)

            async def told() -> bool:
                return not await has_reason(world, "Refused")

            await world.eventually(told, patience=2 * STATUS_PAUSE + 5)
            assert "Traceback" not in "\n".join(operator.log)
        assert len(proxy.requests) < MAX_REQUESTS


async def test_a_refusal_is_not_an_event_at_each_retry(world: World) -> None:
    await set_quota(world, services=0)
    await world.create()
    async with world.in_process() as operator:
        await operator.rounds(6)
    refusals = [message for message in await event_messages(world) if "exceeded quota" in message]
    assert len(refusals) <= 3  # one for each of the Services


async def assert_refused(world: World, reasons: set[str], child: str, words: str) -> None:
    """Assert that Ready and Progressing report it, with the child's name and the API server's message."""
    service = await world.service()
    status = service["status"]
    assert status["observedGeneration"] == service["metadata"]["generation"]
    conditions = {entry["type"]: entry for entry in status["conditions"]}
    for kind in ("Ready", "Progressing"):
        condition = conditions[kind]
        assert condition["reason"] in reasons, condition
        assert child in condition["message"]
        assert words in condition["message"]


async def others_are_applied(world: World, but: set[str], kind: str) -> bool:
    refused = {(kind, name) for name in but}
    there = set(await world.children())
    named = {(each.kind, "demo" + end) for each, end in CHILDREN}
    assert not refused & there
    return named - refused == there


async def recovered(world: World) -> bool:
    """Reconcile after the repair. Return whether everything is created and nothing is reported."""

    async def made() -> bool:
        await world.reconcile()
        return await world.all_children()

    await world.eventually(made)
    await world.reconcile()
    conditions = (await world.status())["conditions"]
    return not {"Refused", "InvalidSpec"} & {entry["reason"] for entry in conditions}


async def has_reason(world: World, reason: str) -> bool:
    return bool((await world.condition("Ready")).get("reason") == reason)


async def event_messages(world: World) -> list[str]:
    events = await world.cluster.list(EVENT, world.namespace)
    return [event["message"] for event in events if event["involvedObject"]["kind"] == "InferenceService"]


def without_rules(schema: Any) -> None:
    """Remove every CEL rule from the schema, as in an early schema without rules."""
    if isinstance(schema, dict):
        schema.pop("x-kubernetes-validations", None)
        for inner in schema.values():
            without_rules(inner)
    elif isinstance(schema, list):
        for inner in schema:
            without_rules(inner)


def without_new_status_fields(versions: Any) -> None:
    """Remove the status fields that earlier releases of the operator did not write from the schema."""
    status = versions[0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    del status["release"]
    del status["engines"]["properties"]["restarts"]
    del status["frontends"]["properties"]["restarts"]


@contextlib.asynccontextmanager
async def world_of(folder: Path, change: Callable[[Any], None]) -> AsyncIterator[World]:
    """Yield a world on a separate API server with a changed CRD."""
    crd = yaml.safe_load(CRD.read_text())
    change(crd["spec"]["versions"])
    file = folder / "crd.yaml"
    file.write_text(yaml.safe_dump(crd))
    with apiserver() as server:
        await install(server, file)
        cluster = await Cluster.connect(str(server.kubeconfig))
        try:
            yield World(cluster, "default", server.kubeconfig)
        finally:
            await cluster.close()
