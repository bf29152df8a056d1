"""One run: the requests of a trace, engines that take time to start, and the operator that scales them."""

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvasir.frontend.telemetry.load_window import LoadWindow
from kvasir.link.protocol import FinishReason
from kvasir_operator.autoscaler.load_history import LoadHistory
from kvasir_operator.autoscaler.load_sample import sample_of
from kvasir_operator.autoscaling_spec import AutoscalingSpec
from kvasir_operator.load_polls import POLL_SECONDS

TICK_SECONDS = 1.0


@dataclass(frozen=True)
class Model:
    """An engine computes one request a second with these numbers, on average."""

    rows: int = 8
    decode_seconds: float = 7.8
    prefill_seconds: float = 0.2  # one at a time
    kv_requests: int = 10  # that fill the KV cache
    start_seconds: float = 90.0


@dataclass(eq=False)
class _Engine:
    ready_at: float
    running: int = 0
    prefilled_at: float = 0.0


@dataclass
class Results:
    # of each request: arrival, and seconds until it got an engine
    waits: list[tuple[float, float]] = field(default_factory=list)
    first_tokens: list[tuple[float, float]] = field(default_factory=list)
    sizes: list[tuple[float, int]] = field(default_factory=list)  # at each change
    engine_seconds: float = 0.0

    @property
    def turns(self) -> int:
        """How often the size changed its direction."""
        moves = [after > before for (_, before), (_, after) in itertools.pairwise(self.sizes)]
        return sum(one != other for one, other in itertools.pairwise(moves))

    def size_at(self, at: float) -> int:
        return [size for when, size in self.sizes if when <= at][-1]


def percentile(values: Iterable[tuple[float, float]], since: float, until: float, share: float = 0.95) -> float:
    """Return the percentile of the requests that came in this time; 0 without any."""
    found = sorted(value for at, value in values if since <= at < until)
    return found[math.ceil(share * len(found)) - 1] if found else 0.0


class Simulation:
    def __init__(
        self,
        spec: AutoscalingSpec,
        arrivals: Iterable[float],
        *,
        model: Model = Model(),
        seed: int = 0,
        restarts: Iterable[float] = (),
        silent: Callable[[float], bool] = lambda at: False,
    ) -> None:
        """`restarts`: when a new operator takes over. `silent`: whether the frontend does not respond."""
        self.results = Results()
        self._spec, self._model, self._silent = spec, model, silent
        self._rng = random.Random(seed)
        self._now = 0.0
        self._engines = [_Engine(0.0) for _ in range(max(1, spec.min_ranks))]
        self._queue: deque[float] = deque()
        self._arrived = 0
        self._window = LoadWindow(lambda: self._now)
        self._history = LoadHistory()
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        for at in arrivals:
            self._at(at, self._arrive)
        for at in restarts:
            self._at(at, self._restart)

    def run(self, seconds: float = 3600.0) -> Results:
        self.results.sizes.append((0.0, len(self._engines)))
        self._at(0.0, self._tick)
        self._at(POLL_SECONDS / 2, self._poll)
        while self._events and self._events[0][0] <= seconds:
            at, _, event = heapq.heappop(self._events)
            self.results.engine_seconds += len(self._engines) * (at - self._now)
            self._now = at
            event()
        self.results.waits += [(at, self._now - at) for at in self._queue]
        return self.results

    def _at(self, at: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), event))

    def _arrive(self) -> None:
        self._arrived += 1
        self._queue.append(self._now)
        self._send()

    def _send(self) -> None:
        while self._queue:
            ready = [each for each in self._serving if each.running < self._model.rows]
            if not ready:
                return
            self._begin(min(ready, key=lambda each: each.running), self._queue.popleft())

    def _begin(self, engine: _Engine, came: float) -> None:
        engine.running += 1
        engine.prefilled_at = first = max(self._now, engine.prefilled_at) + self._model.prefill_seconds
        self._window.request_started(self._now - came)
        self.results.waits.append((came, self._now - came))
        self.results.first_tokens.append((came, first - came))
        self._at(first, lambda: self._window.first_token(first - came))
        self._at(first + self._rng.gammavariate(4, self._model.decode_seconds / 4), lambda: self._end(engine))

    def _end(self, engine: _Engine) -> None:
        engine.running -= 1
        self._window.request_finished(FinishReason.STOP)
        self._send()

    @property
    def _serving(self) -> list[_Engine]:
        return [each for each in self._engines if each.ready_at <= self._now]

    def _tick(self) -> None:
        serving, model = self._serving, self._model
        running = sum(each.running for each in serving)
        kv_use = min(1.0, running / (model.kv_requests * len(serving))) if serving else None
        waits = [self._now - came for came in self._queue]
        self._window.tick(self._arrived, running, waits, len(serving), kv_use)
        self._at(self._now + TICK_SECONDS, self._tick)

    def _poll(self) -> None:
        ranks = len(self._engines)
        sample = None if self._silent(self._now) else sample_of([self._window.report])
        if sample is not None:
            self._history = self._history.with_sample(self._spec, sample, ranks, self._now)
        wanted = self._history.decide(self._spec, ranks, self._now).ranks
        if wanted != ranks:
            self._scale(wanted)
        self._at(self._now + POLL_SECONDS, self._poll)

    def _scale(self, ranks: int) -> None:
        ready_at = self._now + self._model.start_seconds
        self._engines += [_Engine(ready_at) for _ in range(ranks - len(self._engines))]
        del self._engines[ranks:]  # their requests end
        self.results.sizes.append((self._now, ranks))
        self._at(ready_at, self._send)

    def _restart(self) -> None:
        # the status keeps this field
        self._history = LoadHistory(requests_per_rank=self._history.requests_per_rank, missed_at=self._now)
