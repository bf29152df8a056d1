"""Selects the engines that would compute a fresh request within about two steps."""

from collections.abc import Callable, Iterable
from typing import Final

from kvasir.client.dispatch.engine_load import EngineLoad
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import EngineStats, Ready

MIN_QUEUED_REQUESTS: Final = 2
QUEUED_SHARE: Final = 8
"""An eighth of the rows may wait, to refill those that end within two steps."""
QUEUED_STEPS: Final = 2
"""Steps that waiting prefills may fill."""
GROWTH_BLOCKS: Final = 4
"""KV blocks into which each running request may grow."""


class EngineRoom:
    def __init__(self, load: Callable[[RemoteEngine], EngineLoad]) -> None:
        self._load = load
        self._full: dict[str, EngineStats | None] = {}

    def refused(self, engine: RemoteEngine) -> None:
        self._full[engine.incarnation] = engine.stats

    def reported(self, engine: RemoteEngine, is_step: bool) -> None:
        # not after each report: an engine may stay full for long
        if self._full and engine.incarnation in self._full:
            before, now = self._full[engine.incarnation], engine.stats
            if not is_step or before is None or now is None or _is_shorter(before, now):
                del self._full[engine.incarnation]

    def forget(self, incarnation: str) -> None:
        self._full.pop(incarnation, None)

    def is_full(self, engine: RemoteEngine) -> bool:
        return engine.incarnation in self._full

    def choices(self, engines: Iterable[RemoteEngine], num_tokens: int) -> list[RemoteEngine]:
        usable = [engine for engine in engines if engine.usable and not self.is_full(engine)]
        # A request may wait for its prefix in a full engine. Otherwise a loaded service computes popular prefixes
        # on all engines.
        for engine in usable:
            if self.has_room(engine, num_tokens):
                return usable
        return []

    def has_room(self, engine: RemoteEngine, num_tokens: int) -> bool:
        capacity = engine.capacity
        if capacity is None or engine.incarnation in self._full:
            return False
        load = self._load(engine)
        # each frontend may queue one request in the engine
        if load.others and not load.own_waiting:
            return True
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
