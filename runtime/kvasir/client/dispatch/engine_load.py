"""The load of one engine and how fast it works it off, as far as this frontend sees it.

The router charges a request when it is sent, the journal reports when it leaves the engine, and the output
processor when its first output comes. The speeds are averages over the requests of this frontend; they include the
effect of everything else that the engine does.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from kvasir.link.protocol import EngineStats

HORIZON_SECONDS: Final = 10.0
"""Older measurements count less and less."""
BUSY_SECONDS: Final = 3.0
"""Time constant of the share of time in which requests wait."""
MIN_MEASURED_TOKENS: Final = 128
"""Shorter prefills measure the fixed cost of a step more than the speed."""
WEIGHT: Final = 0.1
"""Weight of the newest request in the averages."""


@dataclass(slots=True)
class _Waiting:
    tokens: int
    uncached: int
    report: int
    """Number of the last report before it was sent."""


@dataclass(slots=True)
class EngineLoad:
    """Requests of this frontend that wait for their first token or generate, and those of other frontends."""

    uncached_tokens: int = 0
    """Tokens that the engine has to compute for the own requests that wait for their first token."""
    others: int = 0
    """Requests of other frontends, a step ago."""
    others_tokens: float = 0.0
    """Tokens that these have to compute before their first tokens, as an estimate."""
    row_seconds: float | None = None
    """Time from the first output of a request to its end; None until a request has ended."""
    mean_uncached: float = 0.0
    """Tokens that a request has to compute, on average."""
    queued_tokens: float = 0.0
    """Tokens that the engine has to compute for requests of all frontends that wait for their first token. A step
    that is under way counts in full."""
    _reports: int = 0
    _busy_share: float = 0.0
    _busy_seen: float | None = None
    """Time up to which `_busy_share` counts."""
    _waiting: dict[str, _Waiting] = field(default_factory=dict)
    _begun: dict[str, float] = field(default_factory=dict)
    _last_begun: float = 0.0
    _prefill_tokens: float = 0.0
    _prefill_seconds: float = 0.0

    @property
    def prefill_rate(self) -> float | None:
        """Tokens per second; None until a prefill was measured."""
        return self._prefill_tokens / self._prefill_seconds if self._prefill_seconds > 0 else None

    @property
    def own(self) -> int:
        """Return how many requests of this frontend the engine has."""
        return len(self._waiting) + len(self._begun)

    @property
    def own_waiting(self) -> int:
        """Return how many requests of this frontend wait for their first token."""
        return len(self._waiting)

    def busy_share(self, now: float) -> float:
        """Return the share of the last seconds in which a request waited for its first token."""
        if self._busy_seen is not None and now > self._busy_seen:
            kept = math.exp((self._busy_seen - now) / BUSY_SECONDS)
            is_busy = bool(self._waiting) or self.others_tokens > 0
            self._busy_share = kept * self._busy_share + (1 - kept) * is_busy
        self._busy_seen = now
        return self._busy_share

    def reported(self, stats: EngineStats, now: float) -> None:
        """Take the engine's report, which counts the requests of all frontends but is a step old.

        The requests in it that are not own count as those of others until the next report: none is counted twice.
        """
        self.busy_share(now)
        self.others = max(0, stats.waiting + stats.running - self.own)
        others_waiting = max(0, stats.waiting - len(self._waiting))
        unfinished = max(0, stats.unfinished_tokens - self.uncached_tokens)
        self.others_tokens = unfinished + others_waiting * self.mean_uncached
        self._reports += 1
        queued = stats.unfinished_tokens + others_waiting * self.mean_uncached
        self.queued_tokens = queued + self._without_row(stats.waiting)

    def _without_row(self, waiting: int) -> int:
        """Return the tokens of the own requests that had no row when the engine reported so many: the last ones.

        Those that were sent since the report before may not have been in this one.
        """
        tokens = 0
        for count, request in enumerate(reversed(self._waiting.values())):
            if count >= waiting and request.report < self._reports - 1:
                break
            tokens += request.uncached
        return tokens

    def sent(self, request_id: str, tokens: int, uncached: int, now: float) -> None:
        """Charge a request that was sent to the engine."""
        self.busy_share(now)
        self._waiting[request_id] = _Waiting(tokens, uncached, self._reports)
        self.uncached_tokens += uncached
        self.queued_tokens += uncached

    def begun(self, request_id: str, cached: int, prefill_seconds: float | None, now: float) -> None:
        """Take a first output. `prefill_seconds`: the time since the engine admitted the request."""
        waiting = self._release(request_id, now)
        if waiting is None:
            return
        self._begun[request_id] = now
        computed = max(1, waiting.tokens - cached)
        self.mean_uncached += WEIGHT * (computed - self.mean_uncached)
        if computed >= MIN_MEASURED_TOKENS and prefill_seconds is not None:
            # Prefills that overlap in time share it.
            self._prefill_seconds += min(prefill_seconds, max(0.0, now - self._last_begun))
            self._prefill_tokens += computed
            if self._prefill_seconds > HORIZON_SECONDS:
                self._prefill_seconds /= 2
                self._prefill_tokens /= 2
        self._last_begun = now

    def begun_at(self, request_id: str) -> float | None:
        """Return when the first output of the request came; None if none has come."""
        return self._begun.get(request_id)

    def left(self, request_id: str, now: float) -> None:
        """Release a request that the engine works on no more."""
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
