"""The work queue: keys that want to be handled, each at most once at a time, again later where that failed.

Watches and the resync put keys in; the reconciler is the handler. A key that is put in while it is waiting is the
same piece of work; one that is put in while it is being handled is handled once more afterwards. So nothing that
happened is missed, and a burst of events is one run.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(frozen=True)
class Backoff:
    """Seconds before the next attempt: doubled with each failure in a row."""

    first: float = 1.0
    most: float = 120.0

    def delay(self, failures: int) -> float:
        """After this many failures; the jitter keeps keys that failed together from coming back together."""
        return min(self.most, self.first * 2.0 ** min(failures - 1, 30)) * random.uniform(0.8, 1.2)


class WorkQueue(Generic[KeyT]):
    """`handle(key)` returns the seconds after which it wants to be called again, or None; what it raises is a
    failure."""

    def __init__(
        self,
        handle: Callable[[KeyT], Awaitable[float | None]],
        *,
        workers: int = 8,
        backoff: Backoff = Backoff(),
    ) -> None:
        self._handle = handle
        self._workers = workers
        self._backoff = backoff
        self._waiting: deque[KeyT] = deque()
        self._queued: set[KeyT] = set()
        """What is in `_waiting`."""
        self._active: set[KeyT] = set()
        self._again: set[KeyT] = set()
        """Active, and put in meanwhile."""
        self._later: dict[KeyT, asyncio.TimerHandle] = {}
        self._failures: dict[KeyT, int] = {}
        self._filled = asyncio.Event()

    def add(self, key: KeyT) -> None:
        """Handle it as soon as a worker is free. Call it in the loop's thread."""
        timer = self._later.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._active:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._waiting.append(key)
            self._filled.set()

    def add_after(self, key: KeyT, delay: float) -> None:
        """Handle it in so many seconds, unless that happens sooner anyhow."""
        loop = asyncio.get_running_loop()
        if key in self._queued or key in self._again:
            return
        timer = self._later.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + delay:
                return
            timer.cancel()
        self._later[key] = loop.call_later(delay, self.add, key)

    @property
    def depth(self) -> int:
        """Keys that wait for a worker."""
        return len(self._waiting)

    @property
    def failing(self) -> int:
        """Keys whose last handling failed."""
        return len(self._failures)

    async def run(self) -> None:
        """Until cancelled; what is being handled then is cancelled with it."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._work())
        finally:
            for timer in self._later.values():
                timer.cancel()
            self._later.clear()

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._filled.clear()
                await self._filled.wait()
            key = self._waiting.popleft()
            self._queued.discard(key)
            self._active.add(key)
            try:
                delay = await self._attempt(key)
            finally:
                self._active.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            elif delay is not None:
                self.add_after(key, delay)

    async def _attempt(self, key: KeyT) -> float | None:
        try:
            delay = await self._handle(key)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            delay = self._backoff.delay(failures)
            log.warning(
                "%s: attempt %d failed (%s: %s); the next is in %.0f s",
                key,
                failures,
                type(error).__name__,
                error,
                delay,
                exc_info=log.isEnabledFor(logging.DEBUG),
            )
            return delay
        self._failures.pop(key, None)
        return delay
