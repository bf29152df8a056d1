"""Where the busy loop stands within a step, and how long its steps take.

Written by the loop and its core in the main thread; read by the watchdog, the ops port and the metrics in theirs.
`now` is replaced whole and counters only grow, so no lock is needed. A step costs five looks at the clock.
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
    """What the main thread does, in this order."""

    SCHEDULE = "schedule"
    EXECUTE = "execute"
    """It computes, or waits for the device; `Moment.batch` is what is computed."""
    UPDATE = "update"
    SEND = "send"


class Moment(NamedTuple):
    """Times are the trace's clock."""

    step: int
    step_began: float
    phase: StepPhase
    phase_began: float
    batch: StepInput | None = None


class Buckets:
    """A histogram that costs a step less than a microsecond."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Values up to each bound and above the one before; the last ones are above all."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class StepTrace:
    """begin, enter each further phase, end: once per step. Other threads only read."""

    def __init__(self, limit: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        """`limit`: seconds that a step may take before it is worth a word in the log."""
        self.limit = limit
        self.clock = clock
        self.now: Moment | None = None
        """None between steps and while idle."""
        self.armed = threading.Event()
        """Set while there may be a step to watch; cleared by the watchdog."""
        self.seconds = Buckets(STEP_SECONDS)
        self.tokens = Buckets(STEP_TOKENS)
        self.requests = Buckets(STEP_REQUESTS)
        self.phase_seconds = dict.fromkeys(StepPhase, 0.0)
        """Time spent in each phase since the start."""

    def begin(self, step: int) -> None:
        """A step begins, with SCHEDULE."""
        now = self.clock()
        self.now = Moment(step, now, StepPhase.SCHEDULE, now)
        if not self.armed.is_set():
            self.armed.set()

    def enter(self, phase: StepPhase, batch: StepInput | None = None) -> None:
        """The next phase of the step begins. Without a step (a core that is driven by hand) nothing happens."""
        last = self.now
        if last is None:
            return
        now = self.clock()
        self.phase_seconds[last.phase] += now - last.phase_began
        self.now = Moment(last.step, last.step_began, phase, now, batch)
        if batch is not None and batch.scheduled:
            self.requests.observe(len(batch.scheduled))
            self.tokens.observe(sum([row.num_new_tokens for row in batch.scheduled]))

    def end(self) -> None:
        """The step is over."""
        last, self.now = self.now, None
        assert last is not None, "no step has begun"
        now = self.clock()
        self.phase_seconds[last.phase] += now - last.phase_began
        seconds = now - last.step_began
        self.seconds.observe(seconds)
        if seconds > self.limit:
            log.warning("step %d ended after %.1f s", last.step, seconds)
