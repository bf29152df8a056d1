"""Waits for demand at the frontends of services at zero, with one long poll per frontend.

The poll only triggers a reconcile, which reads the reports of all frontends.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from kvasir_operator.observe.observed import Pod
from kvasir_operator.observe.service_memory import Key
from kvasir_operator.observe.status_reports import StatusReports
from kvasir_operator.plan.zero import has_demand

RETRY_SECONDS: Final = 5.0  # without a response
MAX_WAKE_SECONDS: Final = 60.0  # between wakes, if reconciles fail
MIN_POLL_SECONDS: Final = 1.0  # any image may respond at once


class DemandPolls:
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
        # keys: UID, address, toZeroAfter
        self._polls: dict[Key, dict[tuple[str, str, float], asyncio.Task[None]]] = {}

    def follow(self, key: Key, frontends: Sequence[Pod], seconds: float) -> None:
        """Poll only these frontends of a service. `seconds` is its toZeroAfter."""
        pods = {(pod.uid, pod.ip, seconds): pod for pod in frontends if pod.ip}
        polls = self._polls.setdefault(key, {})
        for gone in polls.keys() - pods.keys():
            polls.pop(gone).cancel()
        for each, pod in pods.items():
            if each not in polls or polls[each].done():
                polls[each] = asyncio.create_task(self._poll(key, pod, seconds))
        if not polls:
            del self._polls[key]

    def forget(self, key: Key) -> None:
        self.follow(key, (), 0.0)

    async def close(self) -> None:
        tasks = [task for polls in self._polls.values() for task in polls.values()]
        self._polls.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def keys(self) -> Collection[Key]:
        return self._polls.keys()

    async def _poll(self, key: Key, pod: Pod, seconds: float) -> None:
        delay, reached = MIN_POLL_SECONDS, True
        while True:
            began = self._monotonic()
            report = await self._reports.wait_for_demand(pod)
            is_reached = report is not None
            if is_reached != reached:
                self._wake(key)  # the reconcile times the frontend's failure
            reached = is_reached
            if has_demand(report, seconds):
                self._wake(key)
                least, delay = delay, min(2 * delay, MAX_WAKE_SECONDS)  # the engines do not start
            else:
                least = RETRY_SECONDS if report is None else MIN_POLL_SECONDS
                delay = MIN_POLL_SECONDS
            await asyncio.sleep(max(0.0, began + least - self._monotonic()))
