import pytest

from kvasir_contract.endpoints import GATE_SECONDS
from kvasir_operator.cluster.cluster_client import ClusterError
from kvasir_operator.cluster.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD, STATEFUL_SET
from kvasir_operator.resources.names import RELEASE_ANNOTATION
from mock_operator import Operator
from operator_facts import NEWER, RELEASE
from operator_world import AFTER, ENGINES, World


@pytest.fixture
async def world(operator: Operator) -> World:
    world = World(operator)
    world.restart()
    autoscaling = {"minRanks": 0, "toZeroAfter": f"{AFTER:g}s"}
    operator.cluster.add_service(frontend={"replicas": 2}, autoscaling=autoscaling)
    for _ in range(5):
        await world.tick()
    assert (world.size, len(world.frontends)) == (1, 2)
    return world


async def test_ten_cycles_are_alike(world: World) -> None:
    lengths = []
    for cycle in range(10):
        began = world.operator.clock.seconds
        await world.until_size(0)
        for _ in range(5):
            await world.tick()
        assert world.cluster.condition("Ready") == ("True", "ScaledToZero")
        for number in range(50):
            world.request(number % 2)
        await world.until_answered()
        assert world.cluster.condition("Ready")[0] == "True"
        assert world.answered == 50 * (cycle + 1)
        lengths.append(world.operator.clock.seconds - began)
    assert world.replicas == [1, *[0, 1] * 10]
    assert max(lengths[1:]) - min(lengths[1:]) <= 2, lengths
    assert {"ScaledToZero", "WakingUp"} <= {reason for reason, _ in world.cluster.recorded_events}


async def test_a_service_at_zero_asks_nothing(world: World) -> None:
    await world.until_size(0)
    for _ in range(10):
        await world.tick()
    assert world.wait is None
    assert world.cluster.condition("Progressing") == ("False", "ScaledToZero")


async def test_requests_keep_the_engines(world: World) -> None:
    for _ in range(10):
        for _ in range(int(AFTER) - 5):
            await world.tick()
        world.request()
    assert world.replicas == [1]
    await world.until_answered()


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_request_in_each_second_of_a_cycle_is_answered(world: World, *, restarted: bool) -> None:
    """Also if the operator starts again in the same second."""
    for moment in range(int(AFTER) - 3, int(AFTER) + 12):
        await world.until_size(1)
        world.request()
        await world.until_answered()
        for _ in range(moment):
            await world.tick()
        if restarted:
            world.restart()
        world.request(moment % 2)
        await world.until_answered()
    await world.until_size(0)


async def test_an_operator_that_starts_again_each_second_goes_on(world: World) -> None:
    async def until_size(size: int) -> None:
        for _ in range(200):
            world.restart()
            await world.tick()
            if world.size == size:
                return
        raise AssertionError

    await until_size(0)
    world.request()
    await until_size(1)
    await world.until_answered()
    assert world.replicas == [1, 0, 1]


async def test_a_frontend_that_does_not_respond_keeps_the_engines(world: World) -> None:
    silent = list(world.frontends.values())[1]
    silent.responds = False
    for _ in range(300):
        await world.tick()
    assert world.replicas == [1]
    silent.responds = True
    await world.until_size(0)


async def test_unreachable_frontends_at_zero_start_the_engines(world: World) -> None:
    await world.until_size(0)
    for _ in range(5):
        await world.tick()
    assert world.wait is None
    for frontend in world.frontends.values():
        frontend.responds = False
    world.request()  # its long poll fails, which triggers a reconcile
    began = world.operator.clock.seconds
    await world.until_answered(limit=60)
    assert world.operator.clock.seconds - began >= 30
    for _ in range(300):
        await world.tick()
    assert (world.replicas, world.cluster.condition("Ready")) == ([1, 0, 1], ("True", "FrontendsUnreachable"))
    for frontend in world.frontends.values():
        frontend.responds = True
    await world.until_size(0)
    for _ in range(5):
        await world.tick()
    assert world.cluster.condition("Ready") == ("True", "ScaledToZero")


async def test_a_short_silence_at_zero_starts_nothing(world: World) -> None:
    await world.until_size(0)
    for seconds in (10, 25, 28):
        for frontend in world.frontends.values():
            frontend.responds = False
        world.wait = 0.0
        for _ in range(seconds):
            await world.tick()
        for frontend in world.frontends.values():
            frontend.responds = True
        world.wait = 0.0
        for _ in range(3):
            await world.tick()
    assert world.replicas == [1, 0]


async def test_gates_do_not_stay_closed_without_an_operator(world: World) -> None:
    while not all(frontend.closed for frontend in world.frontends.values()):
        await world.tick()
    world.request()
    world.wait = None  # the operator is gone
    await world.until_answered(limit=int(GATE_SECONDS) + 5)
    assert world.size == 1


async def test_engines_that_cannot_be_removed_go_on_serving(world: World) -> None:
    world.cluster.refused["apply", STATEFUL_SET] = ClusterError("admission", status=403)
    for _ in range(150):
        await world.tick()
    world.request()
    await world.until_answered()
    assert world.replicas == [1]
    del world.cluster.refused["apply", STATEFUL_SET]
    await world.until_size(0)


async def test_an_api_server_that_fails_delays_the_wake(world: World) -> None:
    await world.until_size(0)
    for _ in range(3):
        await world.tick()
    world.cluster.refused["apply", STATEFUL_SET] = ClusterError("no connection")
    world.request()
    for _ in range(5):
        await world.tick()
    assert world.failures > 0
    del world.cluster.refused["apply", STATEFUL_SET]
    await world.until_answered()


async def test_a_frontend_that_starts_at_zero_is_made_ready(world: World) -> None:
    await world.until_size(0)
    for _ in range(int(GATE_SECONDS) + 5):
        await world.tick()
    assert not any(frontend.closed for frontend in world.frontends.values())
    await world.operator.once()
    assert all(frontend.closed for frontend in world.frontends.values())


async def test_a_change_at_zero_starts_nothing(world: World) -> None:
    await world.until_size(0)
    world.cluster.change_service(engine={"maxNumSeqs": 8}, frontend={"replicas": 1})
    world.wait = 0.0
    for _ in range(10):
        await world.tick()
    assert world.size == 0
    template = world.cluster.of(STATEFUL_SET, ENGINES)["spec"]["template"]
    assert "8" in template["spec"]["containers"][0]["args"]
    assert world.cluster.of(DEPLOYMENT, "demo-frontend")["spec"]["replicas"] == 1


async def test_without_the_field_the_engines_come_back(world: World) -> None:
    await world.until_size(0)
    world.cluster.change_service(autoscaling={"minRanks": 2})
    world.wait = 0.0
    await world.until_size(2)


@pytest.mark.parametrize("automatic", [False, True])
async def test_an_upgrade_at_zero_is_done_there_and_the_wake_runs_it(world: World, *, automatic: bool) -> None:
    await world.until_size(0)
    world.restart(NEWER, upgrades=int(automatic))
    for _ in range(5):
        await world.tick()
    if not automatic:
        assert world.cluster.condition("UpgradeAvailable") == ("True", "UpgradePending")
        metadata = world.cluster.of(INFERENCE_SERVICE, "demo")["metadata"]
        metadata["annotations"] = {RELEASE_ANNOTATION: NEWER.id}
        world.wait = 0.0
    for _ in range(40):  # the old frontends leave one after the other
        await world.tick()
    assert world.replicas == [1, 0]
    assert world.cluster.status()["release"] == NEWER.id
    assert world.cluster.condition("UpgradeAvailable") == ("False", "AsDesired")
    assert world.cluster.condition("Progressing") == ("False", "ScaledToZero")
    world.request()
    await world.until_answered()
    assert engine_image(world) == NEWER.engine_image


async def test_an_upgrade_at_zero_releases_its_slot(world: World) -> None:
    await world.until_size(0)
    world.cluster.add_service("other", uid="uid-other")
    await world.operator.settle("other")
    for _ in range(5):
        await world.tick()
    world.restart(NEWER, upgrades=1)
    await world.tick()
    await world.operator.once("other")
    assert [engine_image(world, name) for name in ("demo", "other")] == [NEWER.engine_image, RELEASE.engine_image]
    for _ in range(40):  # the old frontends leave one after the other
        await world.tick()
    await world.operator.once("other")
    assert engine_image(world, "other") == NEWER.engine_image


@pytest.mark.parametrize("held", [1, 5, 11])
async def test_a_roll_out_that_is_cut_short_by_zero_is_done_there(world: World, held: int) -> None:
    """The controllers notice the change only after so many seconds, while the service goes to zero."""
    while not all(frontend.closed for frontend in world.frontends.values()):
        await world.tick()
    world.cluster.change_service(engine={"maxNumSeqs": 8})
    world.wait = 0.0
    for _ in range(held):
        await world.tick(controllers=False)
    await world.until_size(0)
    for _ in range(5):
        await world.tick()
    assert world.cluster.condition("Progressing") == ("False", "ScaledToZero")
    assert "rollout" not in world.cluster.status() or "surgeFrom" not in world.cluster.status()["rollout"]
    world.request()
    await world.until_answered()
    for _ in range(3):
        await world.tick()
    assert world.cluster.condition("Progressing") == ("False", "AsDesired")
    pod, engines = world.cluster.of(POD, f"{ENGINES}-0"), world.cluster.of(STATEFUL_SET, ENGINES)
    assert pod["metadata"]["labels"]["controller-revision-hash"] == engines["status"]["updateRevision"]


def engine_image(world: World, name: str = "demo") -> str:
    template = world.cluster.of(STATEFUL_SET, f"{name}-engine")["spec"]["template"]
    return str(template["spec"]["containers"][0]["image"])
