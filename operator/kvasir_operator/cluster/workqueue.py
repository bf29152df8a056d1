"""The work queue: handles each key in at most one worker at a time, and retries failures with backoff.

Adding a key that is waiting has no effect. A key that is added while it is handled is handled once more afterwards,
so no event is missed, and a burst of events causes one run.
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
    first: float = 1.0
    most: float = 120.0

    def delay(self, failures: int) -> float:
        # Jitter spreads keys that failed together.
        return min(self.most, self.first * 2.0 ** min(failures - 1, 30)) * random.uniform(0.8, 1.2)


class WorkQueue(Generic[KeyT]):
    """A queue of keys for `handle`, which returns the seconds after which to call it again, or None."""

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
        self._queued: set[KeyT] = set()  # those in `_waiting`
        self._active: set[KeyT] = set()
        self._again: set[KeyT] = set()  # active, and added again in the meantime
        self._later: dict[KeyT, asyncio.TimerHandle] = {}
        self._failures: dict[KeyT, int] = {}
        self._filled = asyncio.Event()

    def add(self, key: KeyT) -> None:
        # only from the event loop's thread
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
        # keys that wait for a worker
        return len(self._waiting)

    @property
    def failing(self) -> int:
        # keys whose last attempt failed
        return len(self._failures)

    async def run(self) -> None:
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
                "%s: attempt %d failed (%s: %s); retrying in %.0f s",
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
