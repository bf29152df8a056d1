"""How many threads compute a step: fewer while other processes need the cores.

Threads of a step wait for each other: one without a core delays all by a time slice.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from kvasir.config.hardware.machine import CpuUse
from kvasir.process.words import count

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.25  # /proc/stat counts in hundredths of a second
MAX_GAP_SECONDS = 0.05  # longer: a pause, in which waiting does not count
MAX_WAITING = 0.2  # threads without a core, on average, before one is given up
MIN_ROOM = 0.75  # free share of a core for one more thread
MIN_HOLD_SECONDS = 1.0
# Before a lower count may rise again; doubled after each rise that came too early.
MAX_HOLD_SECONDS = 32.0


def fewer_threads(threads: int, waiting: float) -> int:
    """Return the count after `waiting` threads, on average, had no core.

    A thread that shares its core with one busy process waits for half of the time.
    """
    if waiting <= MAX_WAITING:
        return threads
    return max(1, threads - max(1, round(2 * waiting)))


def more_threads(threads: int, most: int, cores: int, others: float) -> int:
    """Return the count, at most `most`, for which processes that use `others` cores leave room."""
    room = int(cores - others + 1 - MIN_ROOM)
    return max(threads, min(most, room))


@dataclass
class Sums:
    seconds: float = 0.0
    waited: float = 0.0
    others: float = 0.0

    def add(self, seconds: float, waited: float, others: float) -> None:
        self.seconds += seconds
        self.waited += waited
        self.others += others


class ThreadCount:
    """Decides from readings of `read` around the steps; without readings nothing changes.

    To save time, the gap between a burst's readings doubles up to INTERVAL_SECONDS: at least half of each burst
    counts.
    """

    def __init__(
        self,
        most: int,
        cores: int,
        read: Callable[[], CpuUse | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.threads = most
        self._most = most
        self._cores = cores
        self._read = read
        self._clock = clock
        self._use = read()
        self._read_at = self._step_ended = self._burst_began = clock()
        self._steps = Sums()
        self._all = Sums()  # with pauses
        self._hold = MIN_HOLD_SECONDS
        self._fell_at = -MAX_HOLD_SECONDS
        self._rose_at: float | None = None  # None: the count has fallen since

    def begin_step(self) -> None:
        now = self._clock()
        if now - self._step_ended > MAX_GAP_SECONDS:
            self._measure(now, stepping=False)
            self._burst_began = now

    def end_step(self) -> None:
        now = self._step_ended = self._clock()
        if now - self._read_at >= min(INTERVAL_SECONDS, self._read_at - self._burst_began):
            self._measure(now, stepping=True)

    def _measure(self, now: float, *, stepping: bool) -> None:
        before, since = self._use, now - self._read_at
        after = self._use = self._read()
        self._read_at = now
        if before is None or after is None:
            return
        difference = (since, after.waited_since(before), after.others - before.others)
        self._all.add(*difference)
        if stepping:
            self._steps.add(*difference)
        self._decide(now)

    def _decide(self, now: float) -> None:
        if self._steps.seconds >= INTERVAL_SECONDS:
            steps, self._steps = self._steps, Sums()
            # Threads also wait for threads of this process: at most `others` wait for other processes.
            waiting = min(steps.waited, steps.others) / steps.seconds
            threads = fewer_threads(self.threads, waiting)
            if threads < self.threads:
                self._change(threads, f"other processes kept {waiting:.1f} threads waiting")
                self._fell(now)
        if self._all.seconds >= INTERVAL_SECONDS:
            total, self._all = self._all, Sums()
            others = max(0.0, total.others / total.seconds)  # ticks are counted late
            threads = more_threads(self.threads, self._most, self._cores, others)
            if threads > self.threads and now - self._fell_at >= self._hold:
                self._change(threads, f"other processes used {others:.1f} cores")
                self._rose_at = now

    def _change(self, threads: int, reason: str) -> None:
        log.info("computing with %d of %s: %s", threads, count(self._most, "thread"), reason)
        self.threads = threads
        self._steps, self._all = Sums(), Sums()

    def _fell(self, now: float) -> None:
        if self._rose_at is not None:
            too_early = now - self._rose_at < 2 * self._hold
            self._hold = min(2 * self._hold, MAX_HOLD_SECONDS) if too_early else MIN_HOLD_SECONDS
        self._fell_at, self._rose_at = now, None
