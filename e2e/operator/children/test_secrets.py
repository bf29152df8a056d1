"""The operator may only create Secrets, and pods nevertheless have their keys."""

from pathlib import Path
from typing import Final

import pytest

from e2e.kind.apiserver import ApiServer
from e2e.operator.harness.api_proxy import api_proxy
from e2e.operator.harness.kubelet import kubelet
from e2e.operator.harness.operator_process import PATIENCE
from e2e.operator.harness.pod_status import is_ready
from e2e.operator.harness.rights import rights_of_the_manifests
from e2e.operator.harness.world import World
from kvasir_contract.environment import KEY_FILES
from kvasir_operator.cluster.cluster_client import Object
from kvasir_operator.cluster.kinds import EVENT, SECRET, SERVICE_ACCOUNT
from kvasir_operator.resources.names import LINK_KEYS_ANNOTATION

A_WHILE: Final = 300.0
"""Seconds after which an operator has checked again whether a Secret exists."""


async def test_the_rights_of_the_manifests_read_no_secret(
    lone_world: tuple[World, ApiServer], tmp_path: Path
) -> None:
    """A service starts and rolls with the operator's own account, which never reads the content of a Secret."""
    world, server = lone_world
    async with rights_of_the_manifests(world) as account:
        kubeconfig = server.kubeconfig_of(world.namespace, account)
        options = ("--namespaces", "", "--lease-namespace", world.namespace)
        await world.create(frontend={"apiKeys": {"name": "my-keys"}})
        await make_secret(world, "my-keys", key="sk-1")
        async with api_proxy(kubeconfig, tmp_path) as proxy, kubelet(world):
            async with world.operator(*options, kubeconfig=proxy.kubeconfig) as operator:
                await operator.logs("leading")
                await world.eventually(world.all_children, 2 * PATIENCE)
                await world.eventually(lambda: is_desired(world), 2 * PATIENCE)
                await world.update(lambda spec: spec["engine"].update(maxModelLen=64))
                await world.eventually(lambda: is_desired(world), 2 * PATIENCE)
                assert await operator.stop() == 0
            assert not [line for line in operator.log if "WARNING" in line or "ERROR" in line]
            assert not [line for line in operator.log if "Traceback" in line]
            about_secrets = [each for each in proxy.requests if "/secrets" in each.path]
            assert {each.method for each in about_secrets} == {"POST"}
            assert len([each for each in about_secrets if "dryRun" not in each.query]) == 1
            refused = [each for each in proxy.requests if each.status == 403]
            assert refused == []


async def test_link_keys_of_both_sides_are_in_one_secret(world: World) -> None:
    await world.create()
    await world.reconcile()
    name = await world.link_secret()
    secret = await world.must_get(SECRET, name)
    assert set(secret["data"]) == set(KEY_FILES)
    assert name.startswith("demo-link-")
    for workload in (await world.stateful_set(), await world.deployment()):
        template = workload["spec"]["template"]
        assert template["metadata"]["annotations"][LINK_KEYS_ANNOTATION] == name
        assert name in str(template["spec"]["volumes"])
    for _ in range(3):
        await world.reconcile()
    assert await link_secrets(world) == [name]


async def test_deleted_link_keys_are_replaced_and_both_workloads_roll(world: World) -> None:
    async with world.in_process() as operator, kubelet(world):
        await world.create()
        await operator.until(lambda: is_desired(world), after=3)
        old_name = await world.link_secret()
        old_pods = await all_uids(world)
        await world.cluster.delete(SECRET, await world.must_get(SECRET, old_name))
        await operator.reconcile(after=A_WHILE)
        await operator.until(lambda: has_other_keys(world, old_name))

        async def rolled() -> bool:
            pods = [*await world.pods("engine"), *await world.pods("frontend")]
            return len(pods) == 2 and all(map(is_ready, pods)) and not old_pods & await all_uids(world)

        await operator.until(rolled, after=1)
        assert await link_secrets(world) == [await world.link_secret()]


async def test_a_deleted_account_does_not_change_the_keys(world: World) -> None:
    """A new operator finds the name of the Secret in the workloads. Other keys would replace every pod."""
    await world.create()
    await world.reconcile()
    before = [await world.stateful_set(), await world.deployment()]
    await world.cluster.delete(SERVICE_ACCOUNT, await world.must_get(SERVICE_ACCOUNT, "demo"))
    for _ in range(2):
        await world.reconcile()
    assert await world.all_children()
    after = [await world.stateful_set(), await world.deployment()]
    assert [each["spec"]["template"] for each in after] == [each["spec"]["template"] for each in before]
    assert len(await link_secrets(world)) == 1


async def test_a_foreign_account_does_not_accumulate_keys(world: World) -> None:
    metadata = {"name": "demo", "namespace": world.namespace}
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    await world.request("POST", SERVICE_ACCOUNT.path(world.namespace), body)
    await world.create()
    for _ in range(4):  # four operators, one after the other
        await world.reconcile()
    assert len(await link_secrets(world)) <= 1


async def test_a_secret_that_cannot_be_asked_for_rolls_nothing(world: World, server: ApiServer) -> None:
    """If the check fails, the operator assumes that the keys exist."""
    async with rights_of_the_manifests(world, without="secrets") as account:
        await world.create()
        await world.reconcile()
        name = await world.link_secret()
        options = ("--namespaces", "", "--lease-namespace", world.namespace, "--resync", "1s")
        async with (
            world.operator(*options, kubeconfig=server.kubeconfig_of(world.namespace, account)) as operator,
            kubelet(world),
        ):
            await operator.logs("leading")
            await world.eventually(lambda: is_desired(world))
        assert await world.link_secret() == name


async def test_a_service_without_keys_reports_the_reason(world: World, server: ApiServer) -> None:
    """Everything but the workloads is created, and the status contains the API server's message."""
    async with rights_of_the_manifests(world, without="secrets") as account:
        await world.create()
        options = ("--namespaces", "", "--lease-namespace", world.namespace)
        async with world.operator(*options, kubeconfig=server.kubeconfig_of(world.namespace, account)):

            async def told() -> Object:
                condition = await world.condition("Ready")
                return condition if condition.get("reason") == "Refused" else {}

            condition = await world.eventually(told)
            assert "Secret demo-link" in condition["message"]
            assert "forbidden" in condition["message"]
            kinds = {kind for kind, _ in await world.children()}
            assert kinds == {"ServiceAccount", "Service", "PodDisruptionBudget", "NetworkPolicy"}


@pytest.mark.parametrize("field", ["apiKeys", "adminApiKeys"])
async def test_keys_of_the_api_are_asked_for_until_they_exist(world: World, field: str) -> None:
    async with world.in_process() as operator:
        await world.create(frontend={field: {"name": "my-keys"}})
        wait = await operator.reconcile()
        condition = await world.condition("Ready")
        assert condition["reason"] == "InvalidSpec"
        assert f"frontend.{field} names the Secret my-keys, which does not exist" in condition["message"]
        assert wait is not None
        assert wait <= 60
        assert await world.all_children()
        await make_secret(world, "my-keys", key="sk-1")
        await operator.reconcile()
        assert (await world.condition("Ready"))["reason"] != "InvalidSpec"


async def test_keys_of_the_api_that_are_deleted_are_missed(world: World) -> None:
    """Running pods have a copy of the keys, but the next pod would not start."""
    async with world.in_process() as operator, kubelet(world):
        await make_secret(world, "my-keys", key="sk-1")
        await world.create(frontend={"apiKeys": {"name": "my-keys"}})
        await operator.until(lambda: is_desired(world), after=3)
        await world.cluster.delete(SECRET, await world.must_get(SECRET, "my-keys"))
        await operator.reconcile(after=A_WHILE)
        await operator.reconcile()
        condition = await world.condition("Ready")
        assert condition["reason"] == "InvalidSpec"
        assert condition["status"] == "True"
        assert "my-keys" in condition["message"]


@pytest.mark.parametrize("component", ["engine", "frontend"])
async def test_no_key_is_in_a_log_an_event_or_a_status(world: World, component: str) -> None:
    async with world.operator() as operator:
        await world.create()
        await world.eventually(world.all_children)
        await world.eventually(lambda: world.status())
        secret = await world.must_get(SECRET, await world.link_secret())
        await operator.stop()
        events = await world.cluster.list(EVENT, world.namespace)
        text = str([operator.log, events, await world.status(), await world.pods(component)])
        assert not [value for value in secret["data"].values() if value in text]


async def has_other_keys(world: World, old: str) -> bool:
    return await world.link_secret() != old


async def link_secrets(world: World) -> list[str]:
    found = await world.cluster.list(SECRET, world.namespace)
    return [each["metadata"]["name"] for each in found if "-link-" in each["metadata"]["name"]]


async def all_uids(world: World) -> set[str]:
    pods = [*await world.pods("engine"), *await world.pods("frontend")]
    return {pod["metadata"]["uid"] for pod in pods}


async def is_desired(world: World) -> bool:
    service = await world.service()
    progressing = await world.condition("Progressing")
    return bool(
        service.get("status", {}).get("observedGeneration") == service["metadata"]["generation"]
        and progressing.get("reason") == "AsDesired"
    )


async def make_secret(world: World, name: str, **content: str) -> None:
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": content}
    await world.request("POST", SECRET.path(world.namespace), body)
