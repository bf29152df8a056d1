"""EngineStatus: the state of this engine, written by the main thread and read by the ops port's.

Attributes are replaced as a whole, so no lock is needed.
"""

import math
import time
from collections.abc import Callable
from typing import Final

from kvasir.engine.health.step_trace import StepTrace
from kvasir.engine.health.step_watchdog import describe_batch
from kvasir.link.protocol import Progress
from kvasir.wire.heartbeats import step_age_limit
from kvasir.wire.peer import LinkProblem
from kvasir_contract.phases import STARTUP_LIMIT, Phase
from kvasir_contract.reasons import Reason
from kvasir_contract.status_report import ReportedProgress, RunningStep, StatusReport

STEPS: Final = 10  # times the longest expected step: a growing context raises it chunk by chunk
TIMEOUTS: Final = 3  # heartbeat timeouts: a silent peer is lost first


class StepLimit:
    """Follows the longest step so far, or one with the whole token budget at the best rate. Any thread."""

    def __init__(self, trace: StepTrace, timeout: float) -> None:
        self._trace = trace
        self._least = TIMEOUTS * timeout
        self._most = step_age_limit(timeout)
        self._budget: int | None = None

    def begin(self, max_num_batched_tokens: int) -> None:
        # not if steps overlap: their durations are not those of a batch
        self._budget = max_num_batched_tokens

    def __call__(self) -> float:
        if self._budget is None:
            return self._most
        expected = max(self._trace.longest, self._trace.seconds_per_token * self._budget)
        return min(self._most, max(self._least, STEPS * expected))


LINK_PATIENCE: Final = 5.0  # seconds without a report of a missing frontend: both start together


class EngineStatus:
    def __init__(
        self,
        incarnation: str,
        rank: int,
        heartbeat_timeout: float,
        clock: Callable[[], float] = time.monotonic,
        slow_step: float = math.inf,
    ) -> None:
        # in seconds: of a stuck step, and of one that is logged
        self.incarnation = incarnation
        self.rank = rank
        self.phase = Phase.STARTING
        self.progress: Progress | None = None
        self.live_requests = 0
        # None if a frontend has accepted this engine
        self.link_problem: Callable[[], LinkProblem | None] = lambda: None
        # frontends that have accepted this engine
        self.links: Callable[[], tuple[str, ...]] = tuple
        self.waits_for: Callable[[], str] = str  # nodes or engines; "": none
        self.unknown_messages: Callable[[], int] = lambda: 0  # skipped, of later versions
        self.startup_seconds: dict[str, float] = {}  # by finished phase
        self.trace = StepTrace(slow_step, clock)
        self.step_limit = StepLimit(self.trace, heartbeat_timeout)  # seconds
        self._clock = clock
        self._message = ""
        self._busy = True
        self._began = self._last_sign = clock()

    def enter(self, phase: Phase, message: str = "") -> None:
        self.progress = None
        self._message = message
        self.phase = phase
        self._last_sign = self._clock()

    def advance(self, progress: Progress) -> None:
        self.progress = progress
        self._last_sign = self._clock()

    def beat(self, busy: bool) -> None:
        """Record a sign of life, before each step (busy) and each wait for work."""
        self._busy = busy
        self._last_sign = self._clock()

    @property
    def message(self) -> str:
        problem = self._problem()
        return self._message or self.waits_for() or ("" if problem is None else problem.message)

    @property
    def reason(self) -> Reason | None:
        problem = self._problem()
        return Reason.LINK_REFUSED if problem is not None and problem.refused else None

    def _step(self) -> RunningStep | None:
        moment = self.trace.now
        if moment is None:
            return None
        seconds = round(self.trace.clock() - moment.step_began, 3)
        batch = "" if moment.batch is None else describe_batch(moment.batch)
        return RunningStep(moment.step, moment.phase, seconds, batch)

    def _problem(self) -> LinkProblem | None:
        early = self._clock() - self._began < LINK_PATIENCE
        return None if early or self._message else self.link_problem()

    def unready_reason(self) -> str | None:
        """Return why the engine accepts no requests, or None."""
        if self.phase is not Phase.READY:
            return f"not ready: {self.phase}"
        return self.trouble()

    def report(self) -> StatusReport:
        progress = self.progress
        return StatusReport(
            phase=self.phase,
            message=self.message,
            reason=self.reason,
            progress=None if progress is None else ReportedProgress(progress.done, progress.total),
            live_requests=self.live_requests,
            incarnation=self.incarnation,
            rank=self.rank,
            links=self.links(),
            startup_seconds=dict(self.startup_seconds),
            step=self._step(),
        )

    def trouble(self) -> str | None:
        """Return why this process should be restarted, or None."""
        if self.phase is Phase.FAILED:
            return f"the engine failed: {self.message}"
        silent = self._clock() - self._last_sign
        if self.phase in (Phase.READY, Phase.DRAINING):
            stuck = self._busy and silent > self.step_limit()
            return f"the current step has been running for {silent:.0f} s" if stuck else None
        return f"{self.phase} without progress for {silent:.0f} s" if silent > STARTUP_LIMIT else None
