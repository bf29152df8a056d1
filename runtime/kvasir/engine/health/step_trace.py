"""StepTrace: the position of the busy loop within a step, and the durations of steps.

The main thread writes. `now` is replaced as a whole and counters only grow, so readers need no lock.
"""

import logging
import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from kvasir.worker.step import StepInput

log = logging.getLogger(__name__)

STEP_SECONDS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
STEP_TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
STEP_REQUESTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class StepPhase(StrEnum):
    SCHEDULE = "schedule"
    EXECUTE = "execute"  # a worker computes, or the thread waits for the device
    UPDATE = "update"
    SEND = "send"
    WAVE = "wave"  # for engines that share experts: an empty pass, or the decision on the end of a wave


class Moment(NamedTuple):
    step: int
    step_began: float
    phase: StepPhase
    phase_began: float
    batch: StepInput | None = None


class Buckets:
    # not prometheus_client's, which takes more than a microsecond per value

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # not cumulative; the last one is above all bounds
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class StepTrace:
    def __init__(self, limit: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.clock = clock
        self.now: Moment | None = None  # None between steps
        self.armed = threading.Event()  # while a step may be running; the watchdog clears it
        self.seconds = Buckets(STEP_SECONDS)
        self.tokens = Buckets(STEP_TOKENS)
        self.requests = Buckets(STEP_REQUESTS)
        self.phase_seconds = dict.fromkeys(StepPhase, 0.0)
        self.longest = 0.0  # step, in seconds
        self.seconds_per_token = math.inf  # the least of all steps
        self._num_tokens = 0

    @property
    def age(self) -> float:
        now = self.now
        return 0.0 if now is None else self.clock() - now.step_began

    def begin(self, step: int) -> None:
        now = self.clock()
        self.now = Moment(step, now, StepPhase.SCHEDULE, now)
        if not self.armed.is_set():
            self.armed.set()

    def enter(self, phase: StepPhase, batch: StepInput | None = None) -> None:
        last = self.now
        if last is None:
            return
        now = self.clock()
        self.phase_seconds[last.phase] += now - last.phase_began
        self.now = Moment(last.step, last.step_began, phase, now, batch)
        if batch is not None and batch.scheduled:
            self.requests.observe(len(batch.scheduled))
            self._num_tokens = sum([row.num_new_tokens for row in batch.scheduled])
            self.tokens.observe(self._num_tokens)

    def end(self) -> None:
        last, self.now = self.now, None
        assert last is not None, "no step has begun"
        now = self.clock()
        self.phase_seconds[last.phase] += now - last.phase_began
        seconds = now - last.step_began
        self.seconds.observe(seconds)
        if seconds > self.longest:
            self.longest = seconds
        if seconds < self.seconds_per_token * self._num_tokens:
            self.seconds_per_token = seconds / self._num_tokens
        self._num_tokens = 0
        if seconds > self.limit:
            log.warning("step %d ended after %.1f s", last.step, seconds)
