"""The load of this frontend in the last seconds, for the operator, which scales the engines by it."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from kvasir.link.protocol import FinishReason
from kvasir_contract.status_report import LOAD_WINDOW_SECONDS, ReportedLoad

MAX_VALUES: Final = 4096  # of requests, for a percentile
SHARE: Final = 0.95


class _Second(NamedTuple):
    at: float
    arrived: int  # since the start
    finished: int
    waiting: int
    running: int
    kv_use: float | None


class LoadWindow:
    # only `report` is thread-safe
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._finished = 0
        self._waits: deque[tuple[float, float]] = deque(maxlen=MAX_VALUES)
        self._first_tokens: deque[tuple[float, float]] = deque(maxlen=MAX_VALUES)
        self._seconds: deque[_Second] = deque()
        self.report: ReportedLoad | None = None

    def request_started(self, waited: float) -> None:
        self._waits.append((self._clock(), waited))

    def first_token(self, seconds: float) -> None:
        self._first_tokens.append((self._clock(), seconds))

    def request_finished(self, reason: FinishReason | None) -> None:
        if reason is not FinishReason.ABORT:
            self._finished += 1

    def tick(self, arrived: int, running: int, waits: Sequence[float], engines: int, kv_use: float | None) -> None:
        """Renew the report, about every second.

        `arrived`: requests since the start. `waits`: how long each request without an engine has waited, in
        seconds. `kv_use`: the used share of the KV blocks.
        """
        now = self._clock()
        self._seconds.append(_Second(now, arrived, self._finished, len(waits), running, kv_use))
        while self._seconds[0].at < now - LOAD_WINDOW_SECONDS:
            self._seconds.popleft()
        for values in (self._waits, self._first_tokens):
            while values and values[0][0] < now - LOAD_WINDOW_SECONDS:
                values.popleft()
        first = self._seconds[0]
        used = [second.kv_use for second in self._seconds if second.kv_use is not None]
        self.report = ReportedLoad(
            seconds=now - first.at,
            engines=engines,
            arrived=arrived - first.arrived,
            finished=self._finished - first.finished,
            waiting=max(second.waiting for second in self._seconds),
            running=max(second.running for second in self._seconds),
            queue_seconds=_percentile([*(value for _, value in self._waits), *waits]),
            ttft=_percentile([*(value for _, value in self._first_tokens), *waits]),
            kv_cache_utilization=max(used, default=None),
        )


def _percentile(values: list[float]) -> float | None:
    values.sort()
    return values[math.ceil(SHARE * len(values)) - 1] if values else None
