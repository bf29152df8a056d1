"""Says where a step hangs that takes too long: rank, step, phase, batch and the line of code. Owned by the process.

A thread that sleeps without a timeout while the engine is idle; the first step arms it, and as long as steps follow
each other it looks once per limit. It only tells: that a stuck engine is ended is the matter of the probes and of
the frontends' heartbeats.
"""

import heapq
import logging
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Final

import kvasir
from kvasir.engine.health.step_trace import Moment, StepPhase, StepTrace
from kvasir.worker.step import StepInput

log = logging.getLogger(__name__)

_SHOWN_REQUESTS: Final = 3
_SHOWN_FRAMES: Final = 3
_PACKAGE: Final = str(Path(kvasir.__file__).parent) + "/"
_WORKER: Final = "worker"
"""Begins the name of the thread that computes overlapped steps; the one that makes the watchdog waits for it."""


class StepWatchdog:
    """Watches the steps of the thread that makes it, and of the worker's where there is one; `close` ends it."""

    def __init__(self, trace: StepTrace, rank: int) -> None:
        """A step is told after the trace's limit, and again each time it has taken twice as long."""
        self._trace = trace
        self._rank = rank
        self._limit = trace.limit
        self._watched = threading.get_ident()
        self._told: tuple[int, float] | None = None  # the step that was told last, and its seconds then
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._trace.armed.set()
        self._thread.join(timeout=1)

    def _run(self) -> None:
        trace = self._trace
        pause = self._limit
        while True:
            trace.armed.wait()
            if self._closed.wait(pause):
                return
            moment = trace.now
            if moment is not None:
                pause = self.look(moment)
                continue
            pause = self._limit
            trace.armed.clear()
            if trace.now is not None:  # a step began before it could see the event cleared
                trace.armed.set()

    def look(self, moment: Moment) -> float:
        """Tell what is due; returns the seconds until the next look."""
        seconds = self._trace.clock() - moment.step_began
        due = self._limit
        if self._told is not None and self._told[0] == moment.step:
            due = 2 * self._told[1]
        if seconds >= due:
            self._told = (moment.step, seconds)
            self._tell(moment, seconds)
            return self._limit
        return min(due - seconds, self._limit)

    def _tell(self, moment: Moment, seconds: float) -> None:
        in_phase = self._trace.clock() - moment.phase_began
        batch = f"; {describe_batch(moment.batch)}" if moment.batch is not None else ""
        log.warning(
            "rank %d: step %d takes %.1f s so far, the last %.1f of them in phase %s%s; it is at %s",
            self._rank,
            moment.step,
            seconds,
            in_phase,
            moment.phase,
            batch,
            self._place(moment.phase),
            extra={"fields": {"rank": self._rank, "step": moment.step, "phase": moment.phase, "seconds": seconds}},
        )

    def _place(self, phase: StepPhase) -> str:
        """Where the thread is that works on the step in this phase."""
        frames = sys._current_frames()
        threads = [self._watched]
        if phase is StepPhase.EXECUTE:
            threads[:0] = [thread.ident or 0 for thread in threading.enumerate() if thread.name.startswith(_WORKER)]
        return next(filter(None, (_lines(frames.get(thread)) for thread in threads)), "an unknown place")


def _lines(frame: FrameType | None) -> str:
    """The innermost lines of this package that led to this frame; "" where none did: a worker that is idle."""
    places: list[str] = []
    while frame is not None and len(places) < _SHOWN_FRAMES:
        file = frame.f_code.co_filename
        if file.startswith(_PACKAGE):
            places.append(f"{file.removeprefix(_PACKAGE)}:{frame.f_lineno} ({frame.f_code.co_name})")
        frame = frame.f_back
    return " ← ".join(places)


def describe_batch(batch: StepInput) -> str:
    """How many rows and tokens, and the requests with the longest contexts."""
    rows = batch.scheduled
    longest = heapq.nlargest(_SHOWN_REQUESTS, rows, key=lambda row: row.num_computed_tokens + row.num_new_tokens)
    named = [f"{row.request_id} ({row.num_new_tokens} after {row.num_computed_tokens} tokens)" for row in longest]
    text = f"{len(rows)} rows, {sum(row.num_new_tokens for row in rows)} tokens"
    return f"{text}, the longest {', '.join(named)}" if named else text
