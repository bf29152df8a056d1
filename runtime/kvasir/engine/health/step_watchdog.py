"""StepWatchdog: logs the position of a slow step: rank, step, phase, batch and line of code.

It sleeps while the engine is idle. Probes and heartbeats end a stuck engine.
"""

import heapq
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from kvasir import version
from kvasir.engine.health.step_trace import Moment, StepPhase, StepTrace
from kvasir.process.words import count
from kvasir.worker.step import StepInput

log = logging.getLogger(__name__)

_SHOWN_REQUESTS: Final = 3
_SHOWN_FRAMES: Final = 3
_PACKAGE: Final = str(Path(version.__file__).parent) + "/"
_WORKER: Final = "worker"


class StepWatchdog:
    """Watches the thread that creates it and the worker's, until `close`."""

    def __init__(self, trace: StepTrace, rank: int, where: Callable[[], str] = lambda: "") -> None:
        """`where` describes worker processes; "" if there are none."""
        self._where = where
        self._trace = trace
        self._rank = rank
        self._limit = trace.limit
        self._watched = threading.get_ident()
        self._logged: tuple[int, float] | None = None  # step and seconds
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
            if trace.now is not None:  # a step began before the event was cleared
                trace.armed.set()

    def look(self, moment: Moment) -> float:
        seconds = self._trace.clock() - moment.step_began
        due = self._limit
        if self._logged is not None and self._logged[0] == moment.step:
            due = 2 * self._logged[1]
        if seconds >= due:
            self._logged = (moment.step, seconds)
            self._log(moment, seconds)
            return self._limit
        return min(due - seconds, self._limit)

    def _log(self, moment: Moment, seconds: float) -> None:
        in_phase = self._trace.clock() - moment.phase_began
        batch = f"; {describe_batch(moment.batch)}" if moment.batch is not None else ""
        log.warning(
            "rank %d: step %d takes %.1f s so far, the last %.1f of them in phase %s%s; %s",
            self._rank,
            moment.step,
            seconds,
            in_phase,
            moment.phase,
            batch,
            (moment.phase is StepPhase.EXECUTE and self._where()) or f"it is at {self._place(moment.phase)}",
            extra={"fields": {"rank": self._rank, "step": moment.step, "phase": moment.phase, "seconds": seconds}},
        )

    def _place(self, phase: StepPhase) -> str:
        frames = sys._current_frames()
        threads = [self._watched]
        if phase is StepPhase.EXECUTE:
            threads[:0] = [thread.ident or 0 for thread in threading.enumerate() if thread.name.startswith(_WORKER)]
        return next(filter(None, (_lines(frames.get(thread)) for thread in threads)), "an unknown place")


def _lines(frame: FrameType | None) -> str:
    places: list[str] = []
    while frame is not None and len(places) < _SHOWN_FRAMES:
        file = frame.f_code.co_filename
        if file.startswith(_PACKAGE):
            places.append(f"{file.removeprefix(_PACKAGE)}:{frame.f_lineno} ({frame.f_code.co_name})")
        frame = frame.f_back
    return " ← ".join(places)


def describe_batch(batch: StepInput) -> str:
    rows = batch.scheduled
    longest = heapq.nlargest(_SHOWN_REQUESTS, rows, key=lambda row: row.num_computed_tokens + row.num_new_tokens)
    named = [
        f"{row.request_id} ({row.num_new_tokens} after {count(row.num_computed_tokens, 'token')})"
        for row in longest
    ]
    text = f"{count(len(rows), 'row')}, {count(sum(row.num_new_tokens for row in rows), 'token')}"
    return f"{text}, the longest {', '.join(named)}" if named else text
