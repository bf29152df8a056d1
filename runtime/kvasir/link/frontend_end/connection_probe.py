"""Finds the engines whose connection has gone when ZMQ reports a broken one."""

import asyncio
from collections.abc import Callable
from typing import Final

PROBE_DELAYS: Final = (0.02, 0.2)  # seconds; ZMQ may report the end before it drops the connection


class ConnectionProbe:
    """Finds the engine whose connection broke: ZMQ reports only that one did."""

    def __init__(self, probe: Callable[[], None]) -> None:
        self._probe = probe
        self._loop = asyncio.get_running_loop()
        self._next = 0.0
        self._timers: list[asyncio.TimerHandle] = []

    def connection_broke(self) -> None:
        # Of many reports at once, the first probes now; the others share later probes.
        now = self._loop.time()
        if now >= self._next:
            self._next = now + PROBE_DELAYS[0]
            self._probe()
        self.cancel()
        self._timers = [self._loop.call_later(delay, self._probe) for delay in PROBE_DELAYS]

    def cancel(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
