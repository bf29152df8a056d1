"""An operator in the process of the test, with clocks that the test sets forward."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from e2e.operator.harness.operator_process import PATIENCE
from kvasir_operator.cluster.cluster_client import ConflictError
from kvasir_operator.load_polls import LoadPolls
from kvasir_operator.observe.cordons import Cordons
from kvasir_operator.observe.service_memory import Key
from kvasir_operator.reconciler import Reconciler

STATUS_PAUSE: Final = 3.0
"""Seconds after which an operator may write a service's status again."""


class Clock:
    """The clocks of an operator, which a test can set forward."""

    def __init__(self, ahead: float = 0.0) -> None:
        self._ahead = ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._ahead)


@dataclass
class InProcess:
    """An operator in this process. It keeps the Reconciler's state between calls, and never sleeps."""

    namespace: str
    reconciler: Reconciler
    clock: Clock
    cordons: Cordons[Key]
    """Updated by a watch in an operator process, and by the test here."""
    load_polls: LoadPolls

    async def reconcile(self, name: str = "demo", *, after: float = STATUS_PAUSE) -> float | None:
        """Reconcile after this many seconds on the operator's clocks, by default enough to write the status."""
        self.clock.advance(after)
        return await self.reconciler.reconcile(Key(self.namespace, name))

    async def until(self, check: Callable[[], Awaitable[object]], name: str = "demo", *, after: float = 0.0) -> Any:
        """Reconcile repeatedly until the check returns a true value."""

        async def done() -> object:
            with contextlib.suppress(ConflictError):  # a controller wrote at the same time: a work queue retries
                await self.reconcile(name, after=after)
            return await check()

        return await eventually(done)

    async def rounds(self, count: int = 4, name: str = "demo") -> None:
        """Reconcile often enough for any wrong action of the operator to occur."""
        for _ in range(count):
            with contextlib.suppress(ConflictError):
                await self.reconcile(name)
            await asyncio.sleep(0.1)  # for the controllers; no event shows that nothing happens


async def eventually(check: Callable[[], Awaitable[object]], patience: float = PATIENCE) -> Any:
    """Return the result of the check as soon as it is true."""
    async with asyncio.timeout(patience):
        while True:
            answer = await check()
            if answer:
                return answer
            await asyncio.sleep(0.05)
