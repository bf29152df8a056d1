"""The status reports problems of pods that only an Event or a container's counter shows."""

from typing import Final

from e2e.operator.harness.cluster_faults import write_event
from e2e.operator.harness.in_process import InProcess
from e2e.operator.harness.pod_status import crash_looping, ready, scheduled, starting
from e2e.operator.harness.world import World
from kvasir_operator.cluster.cluster_client import Object

MISSING: Final = 'MountVolume.SetUp failed for volume "keys" : secret "my-keys" not found'
CREATING: Final[Object] = {"waiting": {"reason": "ContainerCreating"}}
A_WHILE: Final = 10.0


async def test_a_volume_that_cannot_be_mounted_is_named(world: World) -> None:
    async with world.in_process() as operator:
        pod = await mounting(world, operator)
        await write_event(world, pod, "FailedMount", MISSING)
        await later(operator)
        ready_ = await world.condition("Ready")
        assert (ready_["status"], ready_["reason"]) == ("False", "VolumeFailed")
        assert MISSING in ready_["message"]
        assert "demo-engine-0" in ready_["message"]
        (rank,) = (await world.status())["engines"]["ranks"]
        assert MISSING in rank["message"]
        await world.set_pod(pod, starting("engine"))
        await operator.reconcile()
        assert (await world.condition("Ready"))["reason"] == "Loading"


async def test_a_volume_that_cannot_be_attached_is_named(world: World) -> None:
    async with world.in_process() as operator:
        pod = await mounting(world, operator)
        await write_event(
            world, pod, "FailedAttachVolume", "AttachVolume.Attach failed: disk is in use by another node"
        )
        await later(operator)
        assert (await world.condition("Ready"))["reason"] == "VolumeFailed"


async def test_a_volume_of_a_frontend_is_named(world: World) -> None:
    async with world.in_process() as operator:
        await mounting(world, operator)
        await world.make_ready("engine")
        (frontend,) = await world.pods("frontend")
        await world.set_pod(frontend, scheduled("frontend", CREATING))
        await operator.reconcile()
        await write_event(world, frontend, "FailedMount", MISSING)
        await later(operator)
        condition = await world.condition("FrontendsReady")
        assert condition["reason"] == "VolumeFailed"
        assert MISSING in condition["message"]


async def test_an_event_of_an_older_pod_is_ignored(world: World) -> None:
    """Pods of a StatefulSet keep their names."""
    async with world.in_process() as operator:
        pod = await mounting(world, operator)
        await write_event(world, pod, "FailedMount", MISSING, uid="11111111-1111-1111-1111-111111111111")
        await later(operator)
        assert (await world.condition("Ready"))["reason"] == "Loading"


async def test_an_operator_looks_again_at_a_pod_that_mounts(world: World) -> None:
    """An Event causes no watch event, so the operator must look again by itself within a minute."""
    async with world.in_process() as operator:
        await mounting(world, operator)
        wait = await operator.reconcile()
        assert wait is not None
        assert wait <= 30


async def test_restarts_are_counted_in_the_status(world: World) -> None:
    async with world.in_process() as operator:
        await world.create(engine={"dataParallelSize": 3})
        await operator.reconcile()
        await world.settled(ranks=3)
        await world.set_pod(await world.pod("demo-engine-0"), crash_looping("engine", restarts=4))
        await world.set_pod(await world.pod("demo-engine-1"), ready("engine", restartCount=2))
        await world.set_pod(await world.pod("demo-engine-2"), ready("engine"))
        (frontend,) = await world.pods("frontend")
        await world.set_pod(frontend, ready("frontend", restartCount=1))
        await operator.reconcile()
        status = await world.status()
        assert [rank.get("restarts", 0) for rank in status["engines"]["ranks"]] == [4, 2, 0]
        assert status["engines"]["restarts"] == 6
        assert status["frontends"]["restarts"] == 1


async def test_a_structured_failure_is_reported_unchanged(world: World) -> None:
    async with world.in_process() as operator:
        await world.create()
        await operator.reconcile()
        await world.settled()
        line = 'log\n{"reason": "ModelNotFound", "message": "hf://no/such was not found"}\n'
        await world.set_pod(await world.pod("demo-engine-0"), crash_looping("engine", line))
        await operator.reconcile()
        condition = await world.condition("Ready")
        assert condition["reason"] == "ModelNotFound"
        assert "pod demo-engine-0: hf://no/such was not found" in condition["message"]


async def mounting(world: World, operator: InProcess) -> Object:
    """Create a service whose engine is scheduled and waits for its volumes. Return the engine's pod."""
    await world.create()
    await operator.reconcile()
    await world.settled()
    (pod,) = await world.pods("engine")
    await world.set_pod(pod, scheduled("engine", CREATING))
    await operator.reconcile()
    return pod


async def later(operator: InProcess) -> None:
    for _ in range(2):
        await operator.reconcile(after=A_WHILE)
