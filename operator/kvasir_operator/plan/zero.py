"""Whether a service has no engines because it gets no requests, and the orders for the gates of its frontends.

A service goes to zero in two phases. When all frontends have been idle for `toZeroAfter`, they are asked to close
their gates, behind which requests are held. Only after all of them have reported that they are closed and still
idle, the engines are removed. If one reports demand or does not respond, the gates are opened again. At zero, a
request at any frontend starts the engines, and so does a frontend that cannot be asked.

The decision follows from the replicas of the StatefulSet and the reports of this pass. Thus an operator that starts
again continues in the middle of any phase.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kvasir_contract.status_report import StatusReport
from kvasir_operator.observe.observed import Member, Observed, Pod
from kvasir_operator.spec import InferenceService

CLOSING_INTERVAL_SECONDS: Final = 1.0
"""Time between the order to close the gates and the next look at them. They stay closed for GATE_SECONDS."""
LEAST_INTERVAL_SECONDS: Final = 5.0
"""Shortest interval between two looks at a service in use, whatever its toZeroAfter."""
UNKNOWN_INTERVAL_SECONDS: Final = 30.0
"""Interval between two looks while it is not known whether the service is idle."""
UNREACHED_SECONDS: Final = 30.0
"""How long a frontend may hide its demand until it counts as unreachable, and starts the engines of a service at
zero."""
FROM_ZERO: Final = "fromZero"
"""In `status.rollout`: no engine has been ready since the service was at zero."""


@dataclass(frozen=True)
class GateOrder:
    pod: Pod
    closed: bool


@dataclass(frozen=True)
class ZeroDecision:
    at_zero: bool = False
    """Whether the service has no engines now."""
    waking: bool = False
    """Whether the first engines after a time at zero are on their way."""
    gates: tuple[GateOrder, ...] = ()
    polled: tuple[Pod, ...] = ()
    """The frontends whose demand must be waited for, because it starts the engines."""
    again: float | None = None
    """Seconds until the decision may change without an event."""
    memo: Mapping[str, Any] = field(default_factory=dict)
    """The state that the next decision needs. The status keeps it."""
    unreachable: tuple[str, ...] = ()
    """Names of frontends that hide their demand, so that the service has engines."""


def decide_zero(service: InferenceService, observed: Observed, memo: Mapping[str, Any]) -> ZeroDecision:
    """Return the decision. `memo` is that of the previous decision; {} if there is none."""
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
        # A frontend that has started at zero becomes ready with this order.
        polled = (*(member.pod for member in frontends), *(pod for pod, _ in observed.leaving_frontends))
        return replace(
            _at_zero(_orders(frontends, closed=True), polled), again=_seconds_until_unreachable(frontends)
        )
    wait = _seconds_until_idle(observed, seconds)
    if wait > 0:
        kept = _with_engines(waking, frontends, max(wait, LEAST_INTERVAL_SECONDS))
        return replace(kept, unreachable=unreachable)
    if all(_is_closed(member) for member in frontends):
        return _at_zero(polled=tuple(member.pod for member in frontends))
    gates = tuple(GateOrder(member.pod, closed=True) for member in frontends)
    return ZeroDecision(waking=waking, gates=gates, again=CLOSING_INTERVAL_SECONDS, memo=_memo(waking))


def has_demand(report: StatusReport | None, seconds: float) -> bool:
    """Return whether a frontend has got a request within the last `seconds`. Without a report it has not."""
    if report is None or report.demand is None:
        return False
    since = report.demand.request_seconds
    return report.live_requests > 0 or (since is not None and since < seconds)


def _cannot_hold(frontend: Member) -> bool:
    """Return whether a frontend rejects requests without an engine, so that it is never ready at zero."""
    report = frontend.report
    return report is not None and report.demand is not None and not report.demand.can_hold


def _unreachable(frontends: Sequence[Member]) -> tuple[str, ...]:
    return tuple(
        member.pod.name
        for member in frontends
        if member.unreached is not None and member.unreached >= UNREACHED_SECONDS
    )


def _seconds_until_unreachable(frontends: Sequence[Member]) -> float | None:
    """Return the seconds after which a frontend counts as unreachable if it stays as it is; None if all report."""
    waits = [UNREACHED_SECONDS - member.unreached for member in frontends if member.unreached is not None]
    return max(1.0, min(waits)) if waits else None


def _with_engines(waking: bool, frontends: Sequence[Member], again: float | None = None) -> ZeroDecision:
    return ZeroDecision(waking=waking, gates=_orders(frontends, closed=False), again=again, memo=_memo(waking))


def _at_zero(gates: tuple[GateOrder, ...] = (), polled: tuple[Pod, ...] = ()) -> ZeroDecision:
    return ZeroDecision(at_zero=True, gates=gates, polled=polled, memo=_memo(True))


def _memo(from_zero: bool) -> Mapping[str, Any]:
    return {FROM_ZERO: True} if from_zero else {}


def _orders(frontends: Sequence[Member], *, closed: bool) -> tuple[GateOrder, ...]:
    """Return orders for the frontends that report another state of their gate."""
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
    """Return how long the engines are needed at least; 0.0 if every frontend has been idle for `seconds`.

    A frontend counts as idle only from the time when it had a ready engine, so that engines that never become ready
    stay, with their failure in the status.
    """
    if not observed.frontends or observed.leaving_frontends:
        return UNKNOWN_INTERVAL_SECONDS
    waits = [_seconds_until_idle_at(member.report, seconds) for member in observed.frontends]
    return max(wait if wait is not None else UNKNOWN_INTERVAL_SECONDS for wait in waits)


def _seconds_until_idle_at(report: StatusReport | None, seconds: float) -> float | None:
    """Return the seconds for a frontend; None if they are not known."""
    if report is None or report.demand is None or not report.demand.can_hold:
        return None
    if report.live_requests:
        return seconds
    request, engine = report.demand.request_seconds, report.demand.engine_seconds
    if engine is None:
        return None
    idle = engine if request is None else min(engine, request)
    return max(0.0, seconds - idle)
