"""Reads the load of services with targets from their frontends, without the API server.

A poll only triggers a reconcile, when the load asks for another number of engines.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvasir_operator.autoscaler.load_history import LoadHistory
from kvasir_operator.autoscaler.load_sample import sample_of
from kvasir_operator.autoscaling_spec import AutoscalingSpec
from kvasir_operator.observe.service_memory import Key
from kvasir_operator.observe.status_reports import StatusReports
from kvasir_operator.plan.load_scaling import LoadScaling

POLL_SECONDS: Final = 5.0


@dataclass
class _Followed:
    spec: AutoscalingSpec
    scaling: LoadScaling
    history: LoadHistory
    was_unknown: bool = False
    task: asyncio.Task[None] | None = None


class LoadPolls:
    def __init__(
        self,
        reports: StatusReports,
        wake: Callable[[Key], None],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reports = reports
        self._wake = wake
        self._monotonic = monotonic
        self._followed: dict[Key, _Followed] = {}

    def history(self, key: Key, status: Mapping[str, Any]) -> LoadHistory:
        """Return the history; a new one continues that of the status."""
        if (followed := self._followed.get(key)) is not None:
            return followed.history
        now = self._monotonic()
        return LoadHistory(
            requests_per_rank=status.get("autoscaling", {}).get("requestsPerRank"), missed_at=now, since=now
        )

    def follow(self, key: Key, spec: AutoscalingSpec, scaling: LoadScaling, history: LoadHistory) -> None:
        """Poll the frontends that `scaling` names, from now on. `history` is the one that led to it."""
        if not scaling.frontends:
            self.forget(key)
            return
        followed = self._followed.setdefault(key, _Followed(spec, scaling, history))
        followed.spec, followed.scaling = spec, scaling
        followed.was_unknown = history.is_unknown(self._monotonic())
        if followed.task is None or followed.task.done():
            followed.task = asyncio.create_task(self._poll(key))

    def forget(self, key: Key) -> None:
        followed = self._followed.pop(key, None)
        if followed is not None and followed.task is not None:
            followed.task.cancel()

    async def close(self) -> None:
        tasks = [followed.task for followed in self._followed.values() if followed.task is not None]
        self._followed.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def poll(self, key: Key) -> None:
        """Add a sample, and wake a reconcile if it would decide or report something else."""
        followed = self._followed[key]
        scaling = followed.scaling
        reports = await self._reports.of(scaling.frontends)
        found = [reports[pod.uid].load if pod.uid in reports else None for pod in scaling.frontends]
        now, ranks, sample = self._monotonic(), scaling.ranks, sample_of(found)
        assert ranks is not None
        if sample is not None:
            followed.history = followed.history.with_sample(followed.spec, sample, ranks, now)
        decision = followed.history.decide(followed.spec, ranks, now)
        reported = (scaling.ranks, scaling.limited, followed.was_unknown)
        if (decision.ranks, decision.limited != "", followed.history.is_unknown(now)) != reported:
            self._wake(key)

    async def _poll(self, key: Key) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self.poll(key)
