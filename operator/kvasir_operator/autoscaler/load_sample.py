"""The load of a service at one time, from the reports of its frontends."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvasir_contract.status_report import ReportedLoad


@dataclass(frozen=True)
class LoadSample:
    """Sums or maxima of the frontends; the fields are those of ReportedLoad."""

    engines: int
    arrived: int
    finished: int
    waiting: int
    running: int
    queue_seconds: float
    ttft: float
    kv_cache_utilization: float


def sample_of(reports: Sequence[ReportedLoad | None]) -> LoadSample | None:
    """Return the sample; None without frontends, or if one of them reports nothing."""
    loads = [report for report in reports if report is not None]
    if not loads or len(loads) < len(reports):
        return None
    return LoadSample(
        engines=min(load.engines for load in loads),
        arrived=sum(load.arrived for load in loads),
        finished=sum(load.finished for load in loads),
        waiting=sum(load.waiting for load in loads),
        running=sum(load.running for load in loads),
        # without requests, no target is missed
        queue_seconds=max(load.queue_seconds or 0.0 for load in loads),
        ttft=max(load.ttft or 0.0 for load in loads),
        kv_cache_utilization=max(load.kv_cache_utilization or 0.0 for load in loads),
    )
