"""A new release of the operator rolls out only services that request it, or a limited number at a time."""

from collections.abc import Sequence
from typing import Any, Final

import pytest

from e2e.operator.harness.in_process import InProcess
from e2e.operator.harness.kubelet import kubelet
from e2e.operator.harness.pod_status import is_ready
from e2e.operator.harness.world import RELEASE, World
from kvasir_operator.cluster.cluster_client import Object
from kvasir_operator.cluster.kinds import DEPLOYMENT, INFERENCE_SERVICE
from kvasir_operator.observe.service_memory import Key
from kvasir_operator.resources.names import RELEASE_ANNOTATION, TEMPLATE_ANNOTATION
from kvasir_operator.resources.pinning import MAX_TEMPLATE_BYTES
from kvasir_operator.resources.release import Release
from kvasir_operator.upgrades import Upgrades

NEW: Final = Release(frontend_image="kvasir-frontend:new", engine_image="kvasir-engine:new", version="2.0.0")


async def test_a_new_release_keeps_the_templates(world: World) -> None:
    await run_old(world)
    before = await templates(world)
    async with world.in_process(release=NEW) as operator:
        await operator.rounds()
    assert await templates(world) == before
    condition = await world.condition("UpgradeAvailable")
    assert condition["status"] == "True"
    assert NEW.id in condition["message"]
    assert RELEASE_ANNOTATION in condition["message"]
    status = await world.status()
    assert status["release"] == RELEASE.id
    assert (await world.condition("Ready"))["status"] == "True"
    assert (await world.condition("Progressing"))["status"] == "False"


async def test_a_new_release_repairs_without_rolling(world: World) -> None:
    """Drift and scale are repaired with the present release."""
    await run_old(world)
    before = await templates(world)
    await world.edit(DEPLOYMENT, "demo-frontend", lambda found: found["spec"].update(replicas=7))

    def set_sizes(spec: Object) -> None:
        spec["engine"].update(dataParallelSize=2)
        spec["frontend"].update(replicas=1)

    await world.update(set_sizes)
    async with world.in_process(release=NEW) as operator:
        await operator.rounds()
    assert await templates(world) == before
    assert (await world.stateful_set())["spec"]["replicas"] == 2
    assert (await world.deployment())["spec"]["replicas"] == 1


async def test_the_annotation_asks_for_the_release(world: World) -> None:
    await run_old(world)
    async with world.in_process(release=NEW) as operator, kubelet(world):
        await operator.reconcile()
        await annotate(world, NEW.id)
        await operator.until(lambda: all_run(world, NEW), after=1)
        await operator.reconcile()
    assert (await world.condition("UpgradeAvailable"))["status"] == "False"
    assert (await world.status())["release"] == NEW.id


async def test_an_annotation_for_another_release_asks_nothing(world: World) -> None:
    await run_old(world)
    before = await templates(world)
    async with world.in_process(release=NEW) as operator:
        await annotate(world, "3.0.0-12345678")
        await operator.rounds()
    assert await templates(world) == before


@pytest.mark.parametrize(("surplus", "is_kept"), [(0, True), (1, False)])
async def test_the_longest_template_is_stored_and_kept(world: World, surplus: int, is_kept: bool) -> None:
    """The API server limits all annotations of an object together."""
    env = [{"name": f"V{number}", "value": "x" * 30000} for number in range(4)]

    def with_last(spec: Object, length: int) -> None:
        spec["engine"]["pod"] = {"env": [*env, {"name": "LAST", "value": "x" * length}]}

    await run_old(world)
    await world.update(lambda spec: with_last(spec, 0))
    await world.reconcile()
    shorter = (await world.stateful_set())["metadata"]["annotations"][TEMPLATE_ANNOTATION]
    length = MAX_TEMPLATE_BYTES - len(shorter) + surplus
    await world.update(lambda spec: with_last(spec, length))
    await world.reconcile()
    recorded = (await world.stateful_set())["metadata"]["annotations"].get(TEMPLATE_ANNOTATION, "")
    assert len(recorded) == (MAX_TEMPLATE_BYTES if is_kept else 0)
    message = (await world.condition("UpgradeAvailable"))["message"]
    assert ("the pod template of StatefulSet demo-engine is longer" in message) is not is_kept


async def test_a_change_of_the_spec_also_rolls_out_the_release(world: World) -> None:
    await run_old(world)
    async with world.in_process(release=NEW) as operator, kubelet(world):
        await operator.reconcile()
        await world.update(lambda spec: spec["engine"].update(maxModelLen=64))
        await operator.until(lambda: all_run(world, NEW), after=1)


async def test_a_killed_pod_comes_back_in_the_old_release(world: World) -> None:
    await run_old(world)
    async with world.in_process(release=NEW) as operator, kubelet(world):
        await operator.reconcile()
        (pod,) = await world.pods("engine")
        await world.request("DELETE", f"/api/v1/namespaces/{world.namespace}/pods/{pod['metadata']['name']}")

        async def back() -> bool:
            pods = await world.pods("engine")
            return len(pods) == 1 and is_ready(pods[0]) and pods[0]["metadata"]["uid"] != pod["metadata"]["uid"]

        await operator.until(back, after=1)
        assert await all_run(world, RELEASE)


async def test_new_link_keys_take_no_new_release_by_chance(world: World) -> None:
    """Deleting the Secret requests new keys. The pods are replaced, and the release that they get is reported."""
    await run_old(world)
    async with world.in_process(release=NEW) as operator, kubelet(world):
        await operator.reconcile()
        path = f"/api/v1/namespaces/{world.namespace}/secrets/{await world.link_secret()}"
        await world.request("DELETE", path)
        await operator.reconcile(after=600)

        async def told() -> bool:
            status = await world.status()
            images = await images_of(world)
            release = NEW if status["release"] == NEW.id else RELEASE
            return images == {release.engine_image, release.frontend_image}

        await operator.until(told, after=2)


async def test_automatic_upgrades_take_one_service_at_a_time(world: World) -> None:
    names = ["a", "b", "c"]
    async with kubelet(world), world.in_process() as operator:
        for name in names:
            await world.create(name)
            await operator.until(lambda name=name: is_desired(world, name), name, after=3)  # type: ignore[misc]
    upgrades = Upgrades[Key](1)
    async with world.in_process(release=NEW, upgrades=upgrades) as operator:
        await every(operator, names)
        assert await upgraded(world, names) == ["a"]
        await every(operator, names)
        assert await upgraded(world, names) == ["a"]  # its pods are not ready yet
        async with kubelet(world):

            async def all_done() -> bool:
                await every(operator, names)
                under_way = [name for name in names if not await is_desired(world, name)]
                assert len(under_way) <= 1
                return len(await upgraded(world, names)) == 3 and not under_way

            await world.eventually(all_done)
    for name in names:
        assert await all_run(world, NEW, name)


async def test_an_upgrade_that_fails_stops_the_fleet(world: World) -> None:
    names = ["a", "b"]
    async with kubelet(world), world.in_process() as operator:
        for name in names:
            await world.create(name)
            await operator.until(lambda name=name: is_desired(world, name), name, after=3)  # type: ignore[misc]
    async with world.in_process(release=NEW, upgrades=Upgrades[Key](1)) as operator:
        for _ in range(5):  # the new pods never become ready
            await every(operator, names, after=600)
        assert await upgraded(world, names) == ["a"]
        assert len([pod for pod in await world.pods("engine", "b") if is_ready(pod)]) == 1


async def test_a_new_service_gets_the_operators_release(world: World) -> None:
    await world.create()
    await world.reconcile(release=NEW)
    assert (await images_of_templates(world)) == {NEW.engine_image, NEW.frontend_image}
    assert (await world.condition("UpgradeAvailable"))["status"] == "False"


async def run_old(world: World) -> None:
    """Create a service with an operator of the old release, with ready pods."""
    async with world.in_process() as operator, kubelet(world):
        await world.create()
        await operator.until(lambda: is_desired(world), after=3)


async def is_desired(world: World, name: str = "demo") -> bool:
    service = await world.service(name)
    progressing = await world.condition("Progressing", name)
    return bool(
        service.get("status", {}).get("observedGeneration") == service["metadata"]["generation"]
        and progressing.get("reason") == "AsDesired"
    )


async def templates(world: World) -> list[Object]:
    return [(await world.stateful_set())["spec"]["template"], (await world.deployment())["spec"]["template"]]


async def images_of_templates(world: World, name: str = "demo") -> set[str]:
    workloads = [await world.stateful_set(name), await world.deployment(name)]
    return {each["spec"]["template"]["spec"]["containers"][0]["image"] for each in workloads}


async def images_of(world: World, name: str = "demo") -> set[str]:
    pods = [*await world.pods("engine", name), *await world.pods("frontend", name)]
    return {pod["spec"]["containers"][0]["image"] for pod in pods if is_ready(pod)}


async def all_run(world: World, release: Release, name: str = "demo") -> bool:
    """Return whether there are one engine and one frontend, ready and of this release."""
    pods = [*await world.pods("engine", name), *await world.pods("frontend", name)]
    images = await images_of(world, name)
    return len(pods) == 2 and images == {release.engine_image, release.frontend_image}


async def upgraded(world: World, names: Sequence[str]) -> list[str]:
    """Return the services whose templates are those of the new release."""
    return [name for name in names if NEW.engine_image in await images_of_templates(world, name)]


async def every(operator: InProcess, names: Sequence[str], after: float = 3.0) -> None:
    for name in names:
        await operator.reconcile(name, after=after)


async def annotate(world: World, release: str) -> None:
    def change(resource: Any) -> None:
        resource["metadata"].setdefault("annotations", {})[RELEASE_ANNOTATION] = release

    await world.edit(INFERENCE_SERVICE, "demo", change)
