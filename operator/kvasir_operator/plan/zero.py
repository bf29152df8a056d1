"""Whether a service has no engines because it gets no requests, and the orders for the gates of its frontends.

When all frontends have been idle for `toZeroAfter`, they are asked to close their gates, which hold requests. When
all gates are closed and all frontends are still idle, the engines are removed. At zero, a request starts the
engines, and so does a frontend that cannot be asked. Only the StatefulSet's size is kept, so a new operator
continues in any phase.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kvasir_contract.status_report import StatusReport
from kvasir_operator.observe.observed import Member, Observed, Pod
from kvasir_operator.spec import InferenceService

# until the next look after the order; less than GATE_SECONDS
CLOSING_INTERVAL_SECONDS: Final = 1.0
MIN_INTERVAL_SECONDS: Final = 5.0  # while the service is in use
UNKNOWN_INTERVAL_SECONDS: Final = 30.0  # while demand is unknown
UNREACHED_SECONDS: Final = 30.0  # a frontend without a report for so long starts the engines
FROM_ZERO: Final = "fromZero"  # in status.rollout: no engine has been ready since zero


@dataclass(frozen=True)
class GateOrder:
    pod: Pod
    closed: bool


@dataclass(frozen=True)
class ZeroDecision:
    at_zero: bool = False
    waking: bool = False  # the first engines after zero start
    gates: tuple[GateOrder, ...] = ()
    polled: tuple[Pod, ...] = ()  # frontends to wait for demand at
    again: float | None = None  # seconds until a change without an event
    memo: Mapping[str, Any] = field(default_factory=dict)
    unreachable: tuple[str, ...] = ()  # names of frontends without reported demand


def decide_zero(service: InferenceService, observed: Observed, memo: Mapping[str, Any]) -> ZeroDecision:
    """Return the decision. `memo` is that of the previous decision, or {}."""
    seconds, frontends = service.autoscaling.to_zero_after, observed.frontends
    waking = bool(memo.get(FROM_ZERO)) and not any(member.serves for member in observed.engines)
    if seconds is None:
        return _with_engines(waking, frontends)
    unreachable = _unreachable(frontends)
    is_at_zero = observed.stateful_set is not None and observed.stateful_set.replicas == 0
    if service.paused:
        return _at_zero() if is_at_zero else ZeroDecision(waking=waking, memo=_memo(waking))
    if is_at_zero:
        reports = [*(member.report for member in frontends), *(report for _, report in observed.leaving_frontends)]
        if any(has_demand(report, seconds) for report in reports) or any(map(_cannot_hold, frontends)):
            return _with_engines(True, frontends)
        if unreachable:
            return replace(_with_engines(True, frontends), unreachable=unreachable)
        # a frontend that started at zero becomes ready with this order
        polled = (*(member.pod for member in frontends), *(pod for pod, _ in observed.leaving_frontends))
        return replace(
            _at_zero(_orders(frontends, closed=True), polled), again=_seconds_until_unreachable(frontends)
        )
    wait = _seconds_until_idle(observed, seconds)
    if wait > 0:
        kept = _with_engines(waking, frontends, max(wait, MIN_INTERVAL_SECONDS))
        return replace(kept, unreachable=unreachable)
    if all(_is_closed(member) for member in frontends):
        return _at_zero(polled=tuple(member.pod for member in frontends))
    gates = tuple(GateOrder(member.pod, closed=True) for member in frontends)
    return ZeroDecision(waking=waking, gates=gates, again=CLOSING_INTERVAL_SECONDS, memo=_memo(waking))


def has_demand(report: StatusReport | None, seconds: float) -> bool:
    if report is None or report.demand is None:
        return False
    since = report.demand.request_seconds
    return report.live_requests > 0 or (since is not None and since < seconds)


def _cannot_hold(frontend: Member) -> bool:
    # it is never ready at zero
    report = frontend.report
    return report is not None and report.demand is not None and not report.demand.can_hold


def _unreachable(frontends: Sequence[Member]) -> tuple[str, ...]:
    return tuple(
        member.pod.name
        for member in frontends
        if member.unreached is not None and member.unreached >= UNREACHED_SECONDS
    )


def _seconds_until_unreachable(frontends: Sequence[Member]) -> float | None:
    waits = [UNREACHED_SECONDS - member.unreached for member in frontends if member.unreached is not None]
    return max(1.0, min(waits)) if waits else None


def _with_engines(waking: bool, frontends: Sequence[Member], again: float | None = None) -> ZeroDecision:
    return ZeroDecision(waking=waking, gates=_orders(frontends, closed=False), again=again, memo=_memo(waking))


def _at_zero(gates: tuple[GateOrder, ...] = (), polled: tuple[Pod, ...] = ()) -> ZeroDecision:
    return ZeroDecision(at_zero=True, gates=gates, polled=polled, memo=_memo(True))


def _memo(from_zero: bool) -> Mapping[str, Any]:
    return {FROM_ZERO: True} if from_zero else {}


def _orders(frontends: Sequence[Member], *, closed: bool) -> tuple[GateOrder, ...]:
    return tuple(
        GateOrder(member.pod, closed)
        for member in frontends
        if member.report is not None
        and member.report.demand is not None
        and member.report.demand.gate_closed != closed
    )


def _is_closed(member: Member) -> bool:
    return member.report is not None and member.report.demand is not None and member.report.demand.gate_closed


def _seconds_until_idle(observed: Observed, seconds: float) -> float:
    # A frontend is idle only after its first ready engine. So engines that never become ready stay, with their
    # failure in the status.
    if not observed.frontends or observed.leaving_frontends:
        return UNKNOWN_INTERVAL_SECONDS
    waits = [_seconds_until_idle_at(member.report, seconds) for member in observed.frontends]
    return max(wait if wait is not None else UNKNOWN_INTERVAL_SECONDS for wait in waits)


def _seconds_until_idle_at(report: StatusReport | None, seconds: float) -> float | None:
    # None: not known
    if report is None or report.demand is None or not report.demand.can_hold:
        return None
    if report.live_requests:
        return seconds
    request, engine = report.demand.request_seconds, report.demand.engine_seconds
    if engine is None:
        return None
    idle = engine if request is None else min(engine, request)
    return max(0.0, seconds - idle)
