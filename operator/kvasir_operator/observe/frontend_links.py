"""Whether an engine is linked to every frontend that may get requests, so that another engine may stop.

The number of links is not enough: a frontend is ready with its first engine, and other engines find it later.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from kvasir_contract.status_report import MAX_LINKS, StatusReport
from kvasir_operator.observe.observed import Pod

STARTING_SECONDS: Final = 30.0  # a frontend that is never ready must not stop a roll-out


def awaited_frontends(pods: Sequence[Pod], waited: Mapping[str, float]) -> list[Pod]:
    """Return the frontends to which an engine must be linked. `waited`: seconds in the state, by UID."""
    return [
        pod
        for pod in pods
        if pod.component == "frontend" and not pod.terminating and (pod.ready or _starts(pod, waited[pod.uid]))
    ]


def _starts(pod: Pod, seconds: float) -> bool:
    is_new = pod.container.restarts == 0 and not pod.has_ended
    return is_new and bool(pod.addresses) and seconds < STARTING_SECONDS


def is_linked(report: StatusReport | None, frontends: Sequence[Pod]) -> bool | None:
    """Return whether all of these frontends accepted the engine; None if unknown."""
    if report is None or report.links is None:
        return None
    links = set(report.links)
    if len(links) >= MAX_LINKS:  # the report does not name the rest
        return True
    return bool(links) and all(not links.isdisjoint(pod.addresses) for pod in frontends)
