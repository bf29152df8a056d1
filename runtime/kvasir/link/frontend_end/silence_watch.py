"""Finds the engines that are silent for too long, once per heartbeat interval."""

import asyncio
from collections.abc import Callable, Collection, Iterator

from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.wire.sockets import heartbeat_interval


class SilenceWatch:
    """Calls `tick` once per interval. The owner then checks for silent engines and sends heartbeats."""

    def __init__(self, timeout: float, tick: Callable[[], None]) -> None:
        """Owned by the running event loop. `timeout`: seconds of silence after which an engine is lost."""
        self._timeout = timeout
        self._interval = heartbeat_interval(timeout)
        self._on_tick = tick
        self._loop = asyncio.get_running_loop()
        self._late = 0.0
        """Seconds by which the present tick is late."""
        self._plan()

    def silent(self, engines: Collection[RemoteEngine]) -> Iterator[tuple[RemoteEngine, float]]:
        """Yield each silent engine, with the seconds since its last message; to be called in a tick."""
        now = self._loop.time()
        for engine in engines:
            if self._late > self._interval:
                # This process was blocked: messages that arrived meanwhile have not been read yet.
                engine.last_seen += self._late
            if now - engine.last_seen > self._timeout:
                yield engine, now - engine.last_seen

    def cancel(self) -> None:
        self._timer.cancel()

    def _plan(self) -> None:
        self._due = self._loop.time() + self._interval
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        self._late = self._loop.time() - self._due
        self._plan()
        self._on_tick()
