"""When to look at a service again, for changes that trigger no watch event."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_operator.observe.observed import Observed
from kvasir_operator.plan.adapter_status import seconds_until_read
from kvasir_operator.plan.conditions import seconds_until_stalled
from kvasir_operator.plan.service_status import Status

# for starting pods, whose progress triggers no event
PROGRESS_INTERVAL_SECONDS: Final = (2.0, 30.0)
BLOCKED_INTERVAL_SECONDS: Final = 30.0  # for obstacles without a watch, such as a quota
_MOVING: Final = frozenset({Phase.PULLING, Phase.STARTING, Phase.LOADING, Phase.WARMING})


def is_moving(observed: Observed) -> bool:
    members = (*observed.engines, *observed.frontends, *observed.fetches)
    return any(member.state.phase in _MOVING for member in members)


def seconds_until_next(
    observed: Observed,
    status: Status,
    obstacles: Sequence[object],
    now: datetime,
    others: Sequence[float | None],
    rolling: bool,
) -> float | None:
    """Return when to look without a watch event, in seconds, or None. `others`: such times of other decisions."""
    members = (*observed.engines, *observed.frontends, *observed.fetches)
    waits = [wait for wait in others if wait is not None]
    moving = [
        member.waited
        for member in members
        if member.state.phase in _MOVING
        or member.state.reason in (Reason.LINK_REFUSED, Reason.NODE_LOST)
        or (rolling and member.pod.component == "engine" and member.serves and not member.is_settled)
    ]
    moving += [
        (now - datetime.fromisoformat(rank["since"])).total_seconds()
        for rank in status["engines"]["ranks"]
        if rank["phase"] == Phase.SCHEDULING
    ]
    if (until_stalled := seconds_until_stalled(status, now)) is not None:
        waits.append(until_stalled)
    if (until_read := seconds_until_read(status)) is not None:
        waits.append(until_read)
    if moving:
        least, most = PROGRESS_INTERVAL_SECONDS
        waits.append(min(max(min(moving) / 10, least), most))
    workloads = (observed.stateful_set, observed.deployment)
    unobserved = any(workload is not None and not workload.is_observed for workload in workloads)
    blocked = any(member.state.phase in (Phase.DRAINING, Phase.SCHEDULING) for member in members)
    stateful_set = observed.stateful_set
    # no watch event reports that a quota forbids pods
    missing = stateful_set is not None and len(observed.engines) < stateful_set.replicas
    if obstacles or blocked or unobserved or missing or observed.cordoned:
        waits.append(BLOCKED_INTERVAL_SECONDS)
    return min(waits, default=None)
