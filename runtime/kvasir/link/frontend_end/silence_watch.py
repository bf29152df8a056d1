"""Finds the engines that have been silent for too long."""

import asyncio
from collections.abc import Callable, Collection, Iterator

from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.wire.heartbeats import HeartbeatClock


class SilenceWatch:
    """Calls `tick` once per heartbeat interval, for the owner's checks and heartbeats."""

    def __init__(self, timeout: float, tick: Callable[[], None]) -> None:
        # `timeout`: seconds of silence
        self._timeout = timeout
        self._on_tick = tick
        self._loop = asyncio.get_running_loop()
        self._clock = HeartbeatClock(timeout, self._loop.time())
        self._blocked = 0.0  # seconds that this process was blocked before this tick
        self._plan()

    def silent(self, engines: Collection[RemoteEngine]) -> Iterator[tuple[RemoteEngine, float]]:
        """Yield each silent engine, with the seconds since its last message; call it in a tick."""
        now = self._loop.time()
        for engine in engines:
            engine.last_seen += self._blocked
            if now - engine.last_seen > self._timeout:
                yield engine, now - engine.last_seen

    def cancel(self) -> None:
        self._timer.cancel()

    def _plan(self) -> None:
        self._timer = self._loop.call_at(self._clock.due, self._tick)

    def _tick(self) -> None:
        self._blocked = self._clock.tick(self._loop.time())
        self._plan()
        self._on_tick()
