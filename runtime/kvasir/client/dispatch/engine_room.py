"""Which engines have room for a fresh request. The dispatcher owns it.

An engine with room computes the request within about two steps. While no engine has room, requests wait in the
frontend, and the next engine with room gets them, in the order of the frontend's queue.

While one has room, another one without room may get a request, if the router expects it to serve the request first:
its cached prefix is worth the wait. The wait is bounded by the time in which the other one computes the prompt. If
requests did not wait for their prefix, a loaded service would compute popular prefixes on all engines.
"""

from collections.abc import Callable, Iterable
from typing import Final

from kvasir.client.dispatch.engine_load import EngineLoad
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import EngineStats, Ready

MIN_QUEUED_REQUESTS: Final = 2
QUEUED_SHARE: Final = 8
"""An engine gets as many requests as it has rows, and an eighth more, at least MIN_QUEUED_REQUESTS: enough to
refill the rows that end within two steps."""
QUEUED_STEPS: Final = 2
"""An engine gets requests until their prefills fill so many steps, the present one included."""
GROWTH_BLOCKS: Final = 4
"""KV blocks that an engine keeps for each running request to grow into."""


class EngineRoom:
    """Reads the loads that the router keeps, and remembers the engines that refused a request as full."""

    def __init__(self, load: Callable[[RemoteEngine], EngineLoad]) -> None:
        self._load = load
        self._full: dict[str, EngineStats | None] = {}
        """By incarnation; the report with which the engine refused a request."""

    def refused(self, engine: RemoteEngine) -> None:
        """Note that the engine has refused a request as full."""
        self._full[engine.incarnation] = engine.stats

    def reported(self, engine: RemoteEngine, is_step: bool) -> None:
        """Take a report of the engine. A full one is asked again after a step in which its queue got shorter, or
        with its next heartbeat, not with each report: it may stay full for long."""
        if self._full and engine.incarnation in self._full:
            before, now = self._full[engine.incarnation], engine.stats
            if not is_step or before is None or now is None or _is_shorter(before, now):
                del self._full[engine.incarnation]

    def forget(self, incarnation: str) -> None:
        """Drop everything about an engine that is lost."""
        self._full.pop(incarnation, None)

    def is_full(self, engine: RemoteEngine) -> bool:
        """Return whether the engine has refused a request, and nothing has changed since."""
        return engine.incarnation in self._full

    def choices(self, engines: Iterable[RemoteEngine], num_tokens: int) -> list[RemoteEngine]:
        """Return the engines that a fresh request of so many tokens may be sent to; none while none has room."""
        usable = [engine for engine in engines if engine.usable and not self.is_full(engine)]
        return usable if any(self.has_room(engine, num_tokens) for engine in usable) else []

    def has_room(self, engine: RemoteEngine, num_tokens: int) -> bool:
        """Return whether the engine would compute a fresh request of so many tokens soon."""
        capacity = engine.capacity
        if capacity is None or engine.incarnation in self._full:
            return False
        load = self._load(engine)
        if load.others and not load.own_waiting:
            return True  # several frontends share the room: each has a request in the queue of the engine
        step_tokens = capacity.max_num_batched_tokens
        if step_tokens and load.queued_tokens >= QUEUED_STEPS * step_tokens:
            return False
        rows = capacity.max_num_seqs
        limit = max(MIN_QUEUED_REQUESTS, rows // QUEUED_SHARE)
        if (stats := engine.stats) is not None and stats.waiting and _lacks_blocks(capacity, stats, num_tokens):
            rows = stats.running
        return load.own + load.others < rows + limit


def _is_shorter(before: EngineStats, now: EngineStats) -> bool:
    return now.step > before.step and (now.waiting < before.waiting or not now.waiting)


def _lacks_blocks(capacity: Ready, stats: EngineStats, num_tokens: int) -> bool:
    needed = stats.kv_blocks_used + GROWTH_BLOCKS * stats.running + num_tokens // capacity.block_size
    return needed > capacity.num_blocks
