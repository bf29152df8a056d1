from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kvasir_contract.phases import Phase
from kvasir_contract.status_report import ReportedDemand, StatusReport
from kvasir_operator.cluster.kinds import STATEFUL_SET
from kvasir_operator.observe.observed import Member, Pod
from kvasir_operator.plan.conditions import condition
from kvasir_operator.plan.plan import Plan, make_plan
from kvasir_operator.plan.zero import (
    CLOSING_INTERVAL_SECONDS,
    MIN_INTERVAL_SECONDS,
    UNKNOWN_INTERVAL_SECONDS,
    ZeroDecision,
    decide_zero,
)
from kvasir_operator.spec import InferenceService
from operator_facts import NOON, RELEASE, engines, frontends, observed, service, workload

AFTER = 60.0
TO_ZERO = {"minRanks": 0, "toZeroAfter": "1m"}
IDLE = ReportedDemand(gate_closed=False, request_seconds=AFTER, engine_seconds=500.0)
CLOSED = replace(IDLE, gate_closed=True)
ASLEEP = ReportedDemand(gate_closed=False, request_seconds=None, engine_seconds=None)


def with_report(member: Member, demand: ReportedDemand | None, live: int = 0) -> Member:
    return replace(member, report=StatusReport(Phase.READY, live_requests=live, demand=demand))


def fronts(*demands: ReportedDemand | None, live: int = 0) -> tuple[Member, ...]:
    """Return a ready frontend for each demand; None for one that does not respond. The last has `live` requests."""
    members = frontends(*["ready"] * len(demands))
    last = len(demands) - 1
    return tuple(
        member if demand is None else with_report(member, demand, live if number == last else 0)
        for number, (member, demand) in enumerate(zip(members, demands, strict=True))
    )


def hidden(front: Sequence[Member], seconds: float) -> tuple[Member, ...]:
    """Return the frontends; those without a report have not been reached for so long."""
    return tuple(member if member.report else replace(member, unreached=seconds) for member in front)


def leaving(demand: ReportedDemand, live: int = 0) -> tuple[tuple[Pod, StatusReport | None], ...]:
    [member] = fronts(demand, live=live)
    return ((replace(member.pod, name="leaving", uid="leaving", terminating=True), member.report),)


def decided(
    front: Sequence[Member],
    *,
    replicas: int = 2,
    autoscaling: dict[str, Any] | None = TO_ZERO,
    memo: dict[str, Any] | None = None,
    **facts: Any,
) -> ZeroDecision:
    of = zero_service(autoscaling)
    ranks = engines(*["ready"] * replicas)
    found = observed(of, ranks, front, stateful_set=workload(replicas), **facts)
    return decide_zero(of, found, memo or {})


def zero_service(autoscaling: dict[str, Any] | None = TO_ZERO, **spec: Any) -> InferenceService:
    return service(2, 2, **({} if autoscaling is None else {"autoscaling": autoscaling}), **spec)


def orders(decision: ZeroDecision) -> list[bool]:
    return [order.closed for order in decision.gates]


# -------------------------------------------------------------------------------------------- from engines to zero


def test_idle_frontends_are_asked_to_close_their_gates_first() -> None:
    decision = decided(fronts(IDLE, IDLE))
    assert (decision.at_zero, orders(decision), decision.again) == (False, [True, True], CLOSING_INTERVAL_SECONDS)


def test_engines_go_when_all_gates_are_closed() -> None:
    decision = decided(fronts(CLOSED, CLOSED))
    assert (decision.at_zero, orders(decision)) == (True, [])
    assert [pod.name for pod in decision.polled] == ["demo-frontend-a", "demo-frontend-b"]


def test_an_open_gate_keeps_the_engines_and_all_close_again() -> None:
    decision = decided(fronts(CLOSED, IDLE))
    assert (decision.at_zero, orders(decision)) == (False, [True, True])


@pytest.mark.parametrize(
    ("other", "live", "again"),
    [
        (replace(CLOSED, request_seconds=0.0), 1, AFTER),  # held
        (replace(IDLE, request_seconds=0.0), 1, AFTER),  # came before its gate closed
        (CLOSED, 1, AFTER),  # came between the reads of two facts
        (replace(CLOSED, request_seconds=0.5), 0, AFTER - 0.5),  # came and left
        (replace(CLOSED, request_seconds=AFTER - 0.5), 0, MIN_INTERVAL_SECONDS),
        (replace(CLOSED, request_seconds=None, engine_seconds=10.0), 0, AFTER - 10.0),
        (replace(CLOSED, engine_seconds=None), 0, UNKNOWN_INTERVAL_SECONDS),
        (replace(IDLE, can_hold=False), 0, UNKNOWN_INTERVAL_SECONDS),
        (None, 0, UNKNOWN_INTERVAL_SECONDS),  # does not respond
    ],
)
def test_one_frontend_that_is_not_idle_opens_the_gates(
    other: ReportedDemand | None, live: int, again: float
) -> None:
    decision = decided(fronts(CLOSED, other, live=live))
    closed = [True, other is not None and other.gate_closed]
    assert not decision.at_zero
    assert orders(decision) == [False] * sum(closed)
    assert decision.again == again


def test_a_frontend_that_starts_keeps_the_engines() -> None:
    starting = replace(frontends("starting")[0], report=StatusReport(Phase.STARTING))
    assert not decided((*fronts(CLOSED), starting)).at_zero


def test_a_frontend_that_leaves_keeps_the_engines() -> None:
    assert not decided(fronts(CLOSED, CLOSED), leaving_frontends=leaving(CLOSED)).at_zero


def test_a_request_at_a_frontend_that_leaves_wakes_the_service() -> None:
    asleep = decided(fronts(CLOSED), replicas=0, leaving_frontends=leaving(CLOSED))
    assert (asleep.at_zero, len(asleep.polled)) == (True, 2)
    assert not decided(fronts(CLOSED), replicas=0, leaving_frontends=leaving(CLOSED, live=1)).at_zero


def test_frontends_that_hold_no_requests_wake_the_service() -> None:
    """They would never be ready without engines, so no request could come."""
    assert not decided(fronts(CLOSED, replace(ASLEEP, can_hold=False)), replicas=0).at_zero


def test_a_busy_service_is_looked_at_every_few_seconds() -> None:
    just_now = replace(IDLE, request_seconds=0.0)
    busy = decided(fronts(just_now), autoscaling={**TO_ZERO, "toZeroAfter": "1s"})
    assert busy.again == MIN_INTERVAL_SECONDS


def test_a_service_without_frontends_keeps_the_engines() -> None:
    decision = decided(())
    assert (decision.at_zero, decision.again) == (False, UNKNOWN_INTERVAL_SECONDS)


def test_a_service_is_looked_at_when_it_may_be_idle() -> None:
    busy, idle = replace(IDLE, request_seconds=20.0), replace(IDLE, request_seconds=30.0)
    assert decided(fronts(busy, idle)).again == 40.0


@pytest.mark.parametrize("autoscaling", [None, {"minRanks": 1}])
def test_without_zero_the_gates_are_open(autoscaling: dict[str, Any] | None) -> None:
    """The field may have been changed while they were closed."""
    decision = decided(fronts(CLOSED, IDLE), autoscaling=autoscaling)
    assert (decision.at_zero, orders(decision), decision.polled) == (False, [False], ())
    assert decided(fronts(CLOSED), autoscaling=autoscaling, replicas=0).at_zero is False


# -------------------------------------------------------------------------------------------- from zero to engines


def test_without_demand_the_service_stays_at_zero() -> None:
    decision = decided(fronts(ASLEEP, replace(CLOSED, request_seconds=AFTER)), replicas=0)
    assert (decision.at_zero, len(decision.polled)) == (True, 2)
    assert orders(decision) == [True]  # makes a frontend ready that has started since


@pytest.mark.parametrize(
    ("other", "live"),
    [
        (replace(ASLEEP, request_seconds=0.0), 1),
        (replace(ASLEEP, request_seconds=0.0, gate_closed=True), 1),
        (replace(ASLEEP, request_seconds=AFTER - 1), 0),  # came and left, or was refused
    ],
)
def test_a_request_at_one_frontend_starts_the_engines(other: ReportedDemand, live: int) -> None:
    decision = decided(fronts(CLOSED, other, live=live), replicas=0)
    assert (decision.at_zero, decision.waking, decision.polled) == (False, True, ())
    assert orders(decision) == [False] * (1 + other.gate_closed)


@pytest.mark.parametrize(
    ("seconds", "at_zero", "again"), [(0.0, True, 30.0), (29.5, True, 1.0), (30.0, False, None)]
)
def test_a_frontend_that_cannot_be_asked_starts_the_engines(
    seconds: float, at_zero: bool, again: float | None
) -> None:
    decision = decided(hidden(fronts(ASLEEP, None), seconds), replicas=0)
    assert (decision.at_zero, decision.again, decision.waking) == (at_zero, again, not at_zero)
    assert decision.unreachable == (() if at_zero else ("demo-frontend-b",))


def test_a_paused_service_at_zero_stays_there_unreached() -> None:
    paused = zero_service(paused=True)
    found = observed(paused, (), hidden(fronts(None), 99.0), stateful_set=workload(0))
    assert decide_zero(paused, found, {}).at_zero


def test_a_request_that_started_the_engines_does_not_let_them_go() -> None:
    """The decision to wake and the one to go to zero never follow from the same facts."""
    for seconds in (0.0, 0.5, AFTER - 0.001, AFTER, AFTER + 1):
        for live in (0, 1):
            front = fronts(replace(CLOSED, request_seconds=0.0 if live else seconds), live=live)
            woken = not decided(front, replicas=0).at_zero
            assert decided(front, replicas=2).at_zero is not woken


def test_a_paused_service_keeps_what_it_has() -> None:
    paused = zero_service(paused=True)
    for replicas in (0, 2):
        front = fronts(replace(CLOSED, request_seconds=1.0))
        found = observed(paused, engines(*["ready"] * replicas), front, stateful_set=workload(replicas))
        decision = decide_zero(paused, found, {})
        assert (decision.at_zero, decision.gates, decision.polled) == (replicas == 0, (), ())


# -------------------------------------------------------------------------------------------------- the whole plan


def plan(front: Sequence[Member], replicas: int, ranks: Sequence[Member] = (), memo: bool = False) -> Plan:
    of = zero_service()
    found = observed(of, ranks, front, stateful_set=workload(replicas))
    previous = {"rollout": {"fromZero": True}} if memo else {}
    return make_plan(of, found, previous, RELEASE, NOON)


def replicas_of(made: Plan) -> list[int]:
    return [apply.body["spec"]["replicas"] for apply in made.applies if apply.key[0] is STATEFUL_SET]


def ready(made: Plan) -> tuple[str, str]:
    found = condition(made.status, "Ready")
    return found["status"], found["reason"]


def test_the_plan_removes_the_engines_and_nothing_else() -> None:
    made = plan(fronts(CLOSED, CLOSED), 2, engines("ready", "ready"))
    assert [apply.key[0] for apply in made.applies] == [STATEFUL_SET]
    assert replicas_of(made) == [0]
    assert made.deletions == ()
    assert ready(made) == ("True", "RollingOut")


def test_a_service_at_zero_is_ready() -> None:
    made = plan(fronts(ASLEEP, ASLEEP), 0)
    assert made.applies == ()
    assert made.again is None
    assert ready(made) == ("True", "ScaledToZero")
    assert (made.status["engines"]["summary"], made.status["engines"]["ranks"]) == ("0/0", [])
    assert made.status["rollout"] == {"fromZero": True}
    for kind, status in {"EnginesReady": "True", "Progressing": "False", "Degraded": "False"}.items():
        assert condition(made.status, kind)["status"] == status


def test_a_service_at_zero_without_frontends_is_not_ready() -> None:
    assert ready(plan((), 0))[0] == "False"


def test_a_service_that_wakes_stays_ready_until_its_engines_are() -> None:
    made = plan(fronts(replace(ASLEEP, request_seconds=0.0), live=1), 0)
    assert replicas_of(made) == [2]
    assert ready(made) == ("True", "WakingUp")
    loading = plan(fronts(ASLEEP, ASLEEP, live=1), 2, engines("loading", "pulling"), memo=True)
    assert ready(loading) == ("True", "WakingUp")
    assert condition(loading.status, "Degraded")["status"] == "False"
    assert loading.status["rollout"] == {"fromZero": True}
    one = plan(fronts(ASLEEP, ASLEEP, live=1), 2, engines("ready", "loading"), memo=True)
    assert ready(one) == ("True", "Loading")
    assert condition(one.status, "Degraded")["status"] == "True"
    assert "rollout" not in one.status


def test_a_service_that_fails_to_wake_is_not_ready() -> None:
    made = plan(fronts(ASLEEP, live=1), 2, engines("crashing", "crashing"), memo=True)
    assert ready(made) == ("False", "CrashLooping")
    loading = plan(fronts(ASLEEP, live=1), 2, engines("loading", "loading"))
    assert ready(loading) == ("False", "Loading")  # a first start


@pytest.mark.parametrize(
    ("replicas", "ranks", "expected"),
    [
        (0, (), ("True", "WakingUp")),
        (2, ("loading", "loading"), ("True", "WakingUp")),
        (2, ("ready", "ready"), ("True", "FrontendsUnreachable")),
        (2, ("crashing", "crashing"), ("False", "CrashLooping")),
    ],
)
def test_unreachable_frontends_are_named_in_ready(
    replicas: int, ranks: Sequence[str], expected: tuple[str, str]
) -> None:
    made = plan(hidden(fronts(None, None), 30.0), replicas, engines(*ranks), memo="ready" not in ranks)
    assert ready(made) == expected
    message = condition(made.status, "Ready")["message"]
    assert ("demo-frontend-a" in message) is (expected[0] == "True")
    progressing = condition(made.status, "Progressing")["status"]
    assert progressing == str("loading" in ranks or replicas == 0)


def test_the_orders_to_gates_are_in_the_plan() -> None:
    made = plan(fronts(IDLE, IDLE), 2, engines("ready", "ready"))
    assert made.applies == ()
    assert [order.closed for order in made.gates] == [True, True]
    assert made.again == CLOSING_INTERVAL_SECONDS
