import pytest

from kvasir_operator.cluster.kinds import POD
from kvasir_operator.plan.conditions import condition
from kvasir_operator.plan.waiting_ranks import MAX_HOLD_SECONDS, MIN_HOLD_SECONDS
from mock_operator import Operator

LOOK_SECONDS = 30.0
NAMES = ["demo-engine-0", "demo-engine-1"]


def start_pods(operator: Operator) -> None:
    """Let pod 0 be placed, and let pod 1 find no node."""
    operator.cluster.run_controllers()
    now = operator.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    for name, placed in zip(NAMES, ("True", "False"), strict=True):
        pod = operator.cluster.of(POD, name)
        pod["spec"]["nodeName"] = "node-1" if placed == "True" else ""
        scheduled = {"type": "PodScheduled", "status": placed, "lastTransitionTime": now, "message": "0/1 nodes"}
        pod["status"] = {"conditions": [scheduled]}


@pytest.fixture
async def waiting(operator: Operator) -> Operator:
    requests = {"resources": {"requests": {"memory": "4Gi"}}}
    engine = {"dataParallelSize": 1, "tensorParallelSize": 2, "nodes": 2, "resourceName": "", "pod": requests}
    operator.cluster.add_service(engine=engine)
    await operator.once()
    start_pods(operator)
    return operator


async def releases(operator: Operator, seconds: float, *, restarts: bool = False) -> list[float]:
    """Return when both pods were deleted. They are created again and wait again."""
    times, start = [], operator.clock.seconds
    for look in range(int(seconds / LOOK_SECONDS)):
        if restarts and look % 10 == 0:
            operator.restart()
        await operator.later(LOOK_SECONDS)
        gone = [name for name in NAMES if name not in operator.cluster.names(POD)]
        if gone:
            assert gone == NAMES
            times.append(operator.clock.seconds - start)
            start_pods(operator)
    return times


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_rank_gives_its_room_back_less_and_less_often(waiting: Operator, restarts: bool) -> None:
    """A restarted operator goes on with the same interval."""
    times = await releases(waiting, 6 * MAX_HOLD_SECONDS, restarts=restarts)
    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    assert MIN_HOLD_SECONDS <= gaps[0] <= 1.5 * MIN_HOLD_SECONDS + 2 * LOOK_SECONDS
    assert gaps == sorted(gaps)
    assert MAX_HOLD_SECONDS <= gaps[-1] <= 1.5 * MAX_HOLD_SECONDS + 2 * LOOK_SECONDS


async def test_the_status_and_an_event_say_why(waiting: Operator) -> None:
    await releases(waiting, 2 * MIN_HOLD_SECONDS)
    engines = condition(waiting.cluster.status(), "EnginesReady")
    assert engines["reason"] == "Unschedulable"
    assert "pod demo-engine-1: rank 0 waits for room for all of its 2 pods" in engines["message"]
    why = "gives its place back, because rank 0 waits for room for all of its 2 pods"
    events = [message for reason, message in waiting.cluster.recorded_events if reason == "GivingRoomBack"]
    assert sorted(events) == [f"pod {name} {why}" for name in NAMES]
