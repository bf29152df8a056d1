"""The state of a member, for its probes.

Other threads replace attributes as a whole, so the ops port reads them without a lock.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvasir.executor.processes.worker_messages import FrameKind
from kvasir.wire.heartbeats import step_age_limit
from kvasir_contract.phases import STARTUP_LIMIT, Phase
from kvasir_contract.reasons import Reason
from kvasir_contract.status_report import ReportedProgress, StatusReport


class MemberStatus:
    def __init__(
        self,
        incarnation: str,
        rank: int,
        heartbeat_timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # `rank`: the engine's data-parallel rank
        self.incarnation = incarnation
        self.rank = rank
        self.phase = Phase.STARTING
        self.num_frames = 0
        self.startup_seconds: dict[str, float] = {}  # by finished phase, in order
        # why this node is not connected; "" if it is
        self.problem: Callable[[], str] = lambda: ""
        self.is_refused: Callable[[], bool] = lambda: False
        self._step_limit = step_age_limit(heartbeat_timeout)
        self._clock = clock
        self._message = ""
        self._progress: ReportedProgress | None = None
        self._unanswered: deque[tuple[int, float]] = deque()  # kind and arrival time of each frame
        self._waits = False
        self._last_sign = self._entered = clock()

    def enter(self, phase: Phase, message: str = "") -> None:
        now = self._clock()
        if phase is not self.phase:
            self.startup_seconds[self.phase] = now - self._entered
            self._entered = now
        self._progress = None
        self._message = message
        self._waits = False
        self._last_sign = now
        self.phase = phase

    def wait(self) -> None:
        # The other nodes may take any time.
        self._waits = True
        self._progress = None

    def advance(self, done: int, total: int) -> None:
        self._waits = False
        self._progress = ReportedProgress(done, total)
        self._last_sign = self._clock()

    def took(self, kind: int) -> None:
        self.num_frames += 1
        if kind == FrameKind.LATE_INPUT:  # has no reply
            return
        self._unanswered.append((kind, self._clock()))

    def answered(self) -> None:
        self._unanswered.popleft()

    # ----------------------------------------------------------------------------------------------- the ops port

    def trouble(self) -> str | None:
        if self.phase is Phase.FAILED:
            return f"the node failed: {self._message}"
        now = self._clock()
        if self.phase in (Phase.READY, Phase.DRAINING):
            try:
                kind, since = self._unanswered[0]  # one operation: iterating breaks if another thread appends
            except IndexError:
                return None
            limit = self._step_limit if kind == FrameKind.STEP else STARTUP_LIMIT  # a command such as the warm-up
            return f"the workers have not replied for {now - since:.0f} s" if now - since > limit else None
        silent = 0.0 if self._waits else now - self._last_sign
        return f"{self.phase} without progress for {silent:.0f} s" if silent > STARTUP_LIMIT else None

    def unready_reason(self) -> str | None:
        if self.phase is not Phase.READY:
            return f"not ready: {self.phase}"
        return self.problem() or self.trouble()

    def report(self) -> StatusReport:
        waits = "waits for the other nodes" if self._waits else ""
        return StatusReport(
            phase=self.phase,
            message=self._message or self.problem() or waits,
            reason=Reason.LINK_REFUSED if self.is_refused() else None,
            progress=self._progress,
            incarnation=self.incarnation,
            rank=self.rank,
            startup_seconds=dict(self.startup_seconds),
        )


class MemberCollector(Collector):
    def __init__(self, status: MemberStatus, model_name: str, node_rank: int) -> None:
        self._status = status
        self._labels = {"model_name": model_name, "engine": str(status.rank), "node": str(node_rank)}

    def collect(self) -> Iterator[Metric]:
        names, values = list(self._labels), list(self._labels.values())
        startup = GaugeMetricFamily(
            "kvasir:node_startup_seconds", "Time that a phase of a node's start took.", labels=[*names, "phase"]
        )
        for phase, seconds in list(self._status.startup_seconds.items()):
            startup.add_metric([*values, phase], seconds)
        yield startup
        frames = CounterMetricFamily("kvasir:node_frames", "Steps and calls that a node received.", labels=names)
        frames.add_metric(values, self._status.num_frames)
        yield frames
