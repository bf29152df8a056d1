"""A status is never ahead of the facts, whatever an operator process does (see status_checker.py)."""

import asyncio
import functools
from collections.abc import Callable

import pytest

from e2e.operator.harness.in_process import STATUS_PAUSE
from e2e.operator.harness.kubelet import kubelet
from e2e.operator.harness.operator_process import PATIENCE
from e2e.operator.harness.pod_status import is_ready
from e2e.operator.harness.status_checker import StatusChecker, status_checker
from e2e.operator.harness.world import World
from kvasir_operator.cluster.cluster_client import Object
from kvasir_operator.cluster.kinds import INFERENCE_SERVICE, POD

CHANGES: dict[str, Callable[[Object], None]] = {
    "template": lambda spec: spec["engine"].update(maxModelLen=128),
    "scale up": lambda spec: spec["engine"].update(dataParallelSize=3),
    "scale down": lambda spec: spec["engine"].update(dataParallelSize=1),
    "frontends": lambda spec: spec["frontend"].update(replicas=2),
    "image": lambda spec: spec.update(image="kvasir:other"),
    "all at once": lambda spec: (
        spec["engine"].update(maxModelLen=64, dataParallelSize=2),
        spec["frontend"].update(replicas=1),
        spec.update(image="kvasir:third"),
    )[0],
}


async def test_no_status_reports_the_end_too_early(world: World) -> None:
    async with status_checker(world) as checker, world.operator() as operator, kubelet(world):
        await operator.logs("leading")
        await world.create(engine={"dataParallelSize": 2})
        await done(world, checker, 0)
        for name in CHANGES:
            await changed(world, checker, name)
        assert await checker.violations() == []
        assert checker.done_reports() > len(CHANGES)


async def test_no_status_reports_the_end_too_early_without_a_surge(world: World) -> None:
    rollout = {"maxSurge": 0, "maxUnavailable": 1}
    async with status_checker(world) as checker, world.operator() as operator, kubelet(world):
        await operator.logs("leading")
        await world.create(engine={"dataParallelSize": 2}, rollout=rollout)
        await done(world, checker, 0)
        for name in ("template", "scale down", "image"):
            await changed(world, checker, name)
        assert await checker.violations() == []


async def test_a_deleted_pod_is_not_as_desired(world: World) -> None:
    async with status_checker(world) as checker, world.operator() as operator, kubelet(world):
        await operator.logs("leading")
        await world.create()
        await done(world, checker, 0)
        for component in ("engine", "frontend"):
            await asyncio.sleep(STATUS_PAUSE)  # so that the operator may write at once
            (pod,) = await world.pods(component)
            await world.cluster.delete(POD, pod)
            await world.eventually(functools.partial(replaced, world, component, pod))
        await world.eventually(lambda: as_desired(world))
        assert await checker.violations() == []


async def test_a_slow_controller_is_waited_for(world: World) -> None:
    """An unobserved workload counts as under way. An annotation on it makes the difference visible."""
    async with world.in_process() as operator, kubelet(world):
        await world.create()
        await operator.until(lambda: as_desired(world), after=3)
        await world.update(lambda spec: spec["engine"].update(maxModelLen=128))
        await operator.reconcile()
        progressing = await world.condition("Progressing")
        assert (progressing["status"], progressing["reason"]) == ("True", "RollingOut")


@pytest.mark.parametrize("told", ["too early", "in time"])
async def test_the_checker_finds_a_status_that_is_too_early(world: World, told: str) -> None:
    """There is no operator: the test writes the status, first when all is done, then right after a change."""
    async with status_checker(world) as checker:
        async with world.in_process() as operator, kubelet(world):
            await world.create()
            await operator.until(lambda: as_desired(world), after=3)
        assert await checker.violations() == []
        if told == "too early":
            await world.update(lambda spec: spec["engine"].update(maxModelLen=128))
        service = await world.service()
        status = service["status"]
        status["observedGeneration"] = service["metadata"]["generation"]
        status["model"] = "doctored"
        path = INFERENCE_SERVICE.path(world.namespace, "demo", "status")
        await world.request("PUT", path, {**service, "status": status})
        violations = await checker.violations()
        if told == "in time":
            assert violations == []
        else:
            (violation,) = violations
            assert "the StatefulSet lacks the option 128" in violation


async def changed(world: World, checker: StatusChecker, name: str) -> None:
    """Make the change when the operator may write a status at once, and wait until the status reports its end."""
    await asyncio.sleep(STATUS_PAUSE)
    before = checker.done_reports()
    await world.update(CHANGES[name])
    await done(world, checker, before)


async def done(world: World, checker: StatusChecker, before: int) -> None:
    """Wait until one more status reports that nothing is under way."""

    async def said() -> bool:
        return checker.done_reports() > before

    await world.eventually(said, 3 * PATIENCE)


async def replaced(world: World, component: str, old: Object) -> bool:
    """Return whether the component has exactly one pod, which is new and ready."""
    pods = await world.pods(component)
    uids = [pod["metadata"]["uid"] for pod in pods if is_ready(pod)]
    return len(pods) == 1 and uids not in ([], [old["metadata"]["uid"]])


async def as_desired(world: World) -> bool:
    service = await world.service()
    progressing = await world.condition("Progressing")
    return bool(
        service["status"]["observedGeneration"] == service["metadata"]["generation"]
        and progressing["reason"] == "AsDesired"
    )
