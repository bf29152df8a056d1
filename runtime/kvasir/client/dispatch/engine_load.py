"""The load and speed of an engine, measured with this frontend's requests."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import EngineStats, Ready

MIN_QUEUED_REQUESTS: Final = 2
QUEUED_SHARE: Final = 8
"""An eighth of the rows may wait, to refill those that end within two steps."""
QUEUED_STEPS: Final = 2
"""Steps that waiting prefills may fill."""
GROWTH_BLOCKS: Final = 4
"""KV blocks into which each running request may grow."""


def _is_shorter(before: EngineStats, now: EngineStats) -> bool:
    return now.step > before.step and (now.waiting < before.waiting or not now.waiting)


def _lacks_blocks(capacity: Ready, stats: EngineStats, num_tokens: int) -> bool:
    needed = stats.kv_blocks_used + GROWTH_BLOCKS * stats.running + num_tokens // capacity.block_size
    return needed > capacity.num_blocks


HORIZON_SECONDS: Final = 10.0
BUSY_SECONDS: Final = 3.0
"""Time constant of the share of time with waiting requests."""
MIN_MEASURED_TOKENS: Final = 128
WEIGHT: Final = 0.1


@dataclass(slots=True)
class _Waiting:
    tokens: int
    uncached: int
    report: int


@dataclass(slots=True)
class EngineLoad:
    uncached_tokens: int = 0
    """Tokens to compute before the first tokens of this frontend's requests."""
    others: int = 0
    others_tokens: float = 0.0
    row_seconds: float | None = None
    """Average time from a request's first output to its end."""
    mean_uncached: float = 0.0
    queued_tokens: float = 0.0
    """Tokens to compute before the first tokens of all requests, with the present step."""
    _reports: int = 0
    _busy_share: float = 0.0
    _busy_seen: float | None = None
    _waiting: dict[str, _Waiting] = field(default_factory=dict)
    _begun: dict[str, float] = field(default_factory=dict)
    _last_begun: float = 0.0
    _prefill_tokens: float = 0.0
    _prefill_seconds: float = 0.0

    @property
    def prefill_rate(self) -> float | None:
        """Tokens per second."""
        return self._prefill_tokens / self._prefill_seconds if self._prefill_seconds > 0 else None

    @property
    def own(self) -> int:
        return len(self._waiting) + len(self._begun)

    @property
    def own_waiting(self) -> int:
        return len(self._waiting)

    def busy_share(self, now: float) -> float:
        if self._busy_seen is not None and now > self._busy_seen:
            kept = math.exp((self._busy_seen - now) / BUSY_SECONDS)
            is_busy = bool(self._waiting) or self.others_tokens > 0
            self._busy_share = kept * self._busy_share + (1 - kept) * is_busy
        self._busy_seen = now
        return self._busy_share

    def reported(self, stats: EngineStats, now: float) -> None:
        self.busy_share(now)
        # Others' requests by the last report, so that nothing counts twice.
        self.others = max(0, stats.waiting + stats.running - self.own)
        others_waiting = max(0, stats.waiting - len(self._waiting))
        unfinished = max(0, stats.unfinished_tokens - self.uncached_tokens)
        self.others_tokens = unfinished + others_waiting * self.mean_uncached
        self._reports += 1
        queued = stats.unfinished_tokens + others_waiting * self.mean_uncached
        self.queued_tokens = queued + self._without_row(stats.waiting)

    def _without_row(self, waiting: int) -> int:
        tokens = 0
        for count, request in enumerate(reversed(self._waiting.values())):
            # a request sent since the report before may be missing in this one
            if count >= waiting and request.report < self._reports - 1:
                break
            tokens += request.uncached
        return tokens

    def sent(self, request_id: str, tokens: int, uncached: int, now: float) -> None:
        self.busy_share(now)
        self._waiting[request_id] = _Waiting(tokens, uncached, self._reports)
        self.uncached_tokens += uncached
        self.queued_tokens += uncached

    def begun(self, request_id: str, cached: int, prefill_seconds: float | None, now: float) -> None:
        waiting = self._release(request_id, now)
        if waiting is None:
            return
        self._begun[request_id] = now
        computed = max(1, waiting.tokens - cached)
        self.mean_uncached += WEIGHT * (computed - self.mean_uncached)
        if computed >= MIN_MEASURED_TOKENS and prefill_seconds is not None:
            # Concurrent prefills share their time: two that end at 1.0 s and 1.2 s count 1.0 s and 0.2 s.
            self._prefill_seconds += min(prefill_seconds, max(0.0, now - self._last_begun))
            self._prefill_tokens += computed
            if self._prefill_seconds > HORIZON_SECONDS:
                self._prefill_seconds /= 2
                self._prefill_tokens /= 2
        self._last_begun = now

    def begun_at(self, request_id: str) -> float | None:
        return self._begun.get(request_id)

    def left(self, request_id: str, now: float) -> None:
        self._release(request_id, now)
        begun = self._begun.pop(request_id, None)
        if begun is not None:
            seconds = now - begun
            last = seconds if self.row_seconds is None else self.row_seconds
            self.row_seconds = last + WEIGHT * (seconds - last)

    def _release(self, request_id: str, now: float) -> _Waiting | None:
        self.busy_share(now)
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            self.uncached_tokens -= waiting.uncached
            self.queued_tokens = max(0.0, self.queued_tokens - waiting.uncached)
        return waiting


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
