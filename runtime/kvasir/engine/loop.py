"""EngineLoop: takes messages, schedules, executes, updates and sends, in the process's main thread.

The link's thread owns the sockets and prepares requests. Without work the loop sleeps in the inbox.
"""

import logging
from collections.abc import Iterator
from typing import Final, Protocol

from kvasir.engine.cache_reports import CacheReports
from kvasir.engine.core import EngineCore
from kvasir.engine.drain import DRAIN_SETTLE_SECONDS, Drain
from kvasir.engine.handover.hand_over import HandOver
from kvasir.engine.handover.messages import FetchEnded, PinReleased, PinWanted
from kvasir.engine.health.engine_status import EngineStatus
from kvasir.engine.health.step_trace import StepPhase
from kvasir.engine.inbox import Event, ExecutorFailed, Inbox, Wake, WaveCalled
from kvasir.engine.ingest import RefusedRequest
from kvasir.engine.waves import Flags, Independent, Waves
from kvasir.link.engine_end.engine_link import CacheEventsWanted, DrainSettled, FrontendLost, Received
from kvasir.link.protocol import (
    Abort,
    AdaptersHeld,
    CacheEvents,
    Call,
    EngineStats,
    Outputs,
    RequestOutput,
    Result,
    StartWave,
)
from kvasir.process.words import count
from kvasir_contract.phases import Phase

log = logging.getLogger(__name__)

MESSAGE_SCORES: Final = 1_000_000  # prompt log probabilities (14 bytes each) after which a message ends


MAX_REQUESTS_TAKEN: Final = 128  # before a step and after it: a burst must not delay steps


class Link(Protocol):
    def send(self, frontend: str, message: Outputs | CacheEvents | Result) -> None: ...
    def show_adapters(self, held: AdaptersHeld) -> None: ...
    def set_load(self, stats: EngineStats, busy: bool) -> None: ...
    def drain(self, seconds: float) -> None: ...


def parts(message: Outputs) -> Iterator[Outputs]:
    """Yield messages of an acceptable size: a step may report many prompts."""
    if all(output.prompt_logprobs is None for output in message.outputs):
        yield message
        return
    part: list[RequestOutput] = []
    scores = 0
    for output in message.outputs:
        if part and scores >= MESSAGE_SCORES:
            yield Outputs(part, message.stats)
            part, scores = [], 0
        part.append(output)
        if (scored := output.prompt_logprobs) is not None:
            scores += len(scored.token) + sum(map(len, scored.top))
    yield Outputs(part, message.stats)


class EngineLoop:
    def __init__(
        self,
        core: EngineCore,
        link: Link,
        inbox: Inbox,
        status: EngineStatus,
        drain_timeout: float,
        drain_settle: float = DRAIN_SETTLE_SECONDS,
        waves: Waves | None = None,
        hand_over: HandOver | None = None,
    ) -> None:
        self._core = core
        self._link = link
        self._inbox = inbox
        core.num_in_inbox = lambda: inbox.num_requests
        self._status = status
        self._waves = waves or Independent()
        self._calls: list[tuple[str, Call]] = []  # came during a step, with their frontends
        self._hand_over = hand_over or HandOver()
        pool = core.scheduler.blocks.pool
        self._cache_reports = CacheReports(pool.cache, pool.num_blocks, link.send)
        core.watch_adapters(link.show_adapters)
        self._drain = Drain(drain_timeout, drain_settle, self._is_busy, lambda: not self._hand_over.is_idle)

    def run(self) -> None:
        """Return when the engine is drained. Raises the failure of a step, a worker or another engine."""
        while True:
            self._take_messages(may_wait=True)
            self._answer_calls()
            if self._drained():
                return
            self._show_load()
            self._step()

    def _step(self) -> None:
        trace = self._core.trace
        trace.begin(self._core.num_steps + 1)
        self._waves.before_step(self._core.has_requests)
        output = self._core.execute()
        trace.enter(StepPhase.UPDATE)
        self._take_messages(may_wait=False)  # an abort counts before the update
        outputs = self._core.update(output)
        trace.enter(StepPhase.SEND)
        self._send(outputs)
        self._cache_reports.after_step()
        self._hand_over.after_step()
        if self._waves.running:
            trace.enter(StepPhase.WAVE)
        self._waves.after_step(self._flags(), passed=output is not None and bool(output.token_ids))
        trace.end()

    def drain(self) -> None:
        """Finish the live requests and return from `run`. Safe in signal handlers."""
        self._drain.asked = True
        self._inbox.wake()

    def wake(self) -> None:
        self._inbox.wake()

    def _take_messages(self, may_wait: bool) -> None:
        if may_wait and not (self._core.has_work or self._waves.running):
            self._core.black_box.clear()
            self._core.check_idle()
            self._show_load()
            while self._inbox.empty and self._cache_reports.has_snapshot:
                self._cache_reports.send_part()
            self._cache_reports.before_waiting()
            while not self._drain.asked and self._inbox.empty and self._core.work_ahead():
                pass  # in small pieces: messages wait for one at most
            self._inbox.wait(self._drain.seconds_left)
        self._take(MAX_REQUESTS_TAKEN)
        if (self._drain.asked or self._waves.agreed.drains) and not self._drain.has_begun:
            self._begin_drain()

    def _take(self, most: int | None) -> None:
        taken = self._inbox.take(most)
        for event in taken.events:
            self._handle(event)
        for request in taken.requests:
            self._core.queue(request)

    def _handle(self, event: Event) -> None:
        match event:
            case Received(frontend, Abort(request_ids)):
                self._core.abort(frontend, request_ids)
                self._linger()
            case Received(frontend, Call() as call):
                self._calls.append((frontend, call))
            case CacheEventsWanted(frontend):
                self._cache_reports.follow(frontend)
            case FrontendLost(frontend):
                self._cache_reports.forget(frontend)
                if aborted := self._core.abort_frontend(frontend):
                    log.info("frontend %s is gone: %s aborted", frontend, count(aborted, "request"))
            case DrainSettled():
                self._drain.settled = True
            case RefusedRequest():
                self._core.refuse(event)
            case Wake(request_id):
                self._core.wake(request_id)
            case PinWanted() | PinReleased() | FetchEnded():
                self._hand_over.handle(event)
                self._linger()
            case Received(_, StartWave()):
                self._waves.wake()
            case WaveCalled(wave):
                self._waves.begin(wave)
            case ExecutorFailed(error):
                raise error

    def _answer_calls(self) -> None:
        # In a step, workers may wait for masks of this thread.
        calls, self._calls = self._calls, []
        for frontend, call in calls:
            self._link.send(frontend, self._core.call(call))

    def _show_load(self) -> None:
        busy = self._core.has_work
        stats = self._core.stats()
        self._status.live_requests = stats.waiting + stats.running
        self._status.beat(busy)
        self._link.set_load(stats, busy)

    def _send(self, outputs: dict[str, Outputs]) -> None:
        for frontend, message in outputs.items():
            for part in parts(message):
                self._link.send(frontend, part)

    # ----------------------------------------------------------------------------------------------------- drain

    def _begin_drain(self) -> None:
        self._drain.begin()
        self._waves.drain()
        self._status.enter(Phase.DRAINING)
        self._link.drain(self._drain.timeout)
        stats = self._core.stats()
        log.info(
            "draining: %d running and %d waiting requests have %.0f s to finish",
            stats.running,
            stats.waiting,
            self._drain.timeout,
        )

    def _is_busy(self) -> bool:
        return self._core.has_work or self._core.has_requests or not self._inbox.empty

    def _linger(self) -> None:
        if self._hand_over.serves:
            self._drain.linger()

    def _flags(self) -> Flags:
        self._drain.group_overdue = self._waves.agreed.overdue
        return self._drain.flags(self._core.has_work)

    def _drained(self) -> bool:
        """Return whether the loop may end; after the drain timeout, end all requests."""
        if not self._drain.has_begun:
            return False
        if self._flags().overdue:
            self._end_requests()
        return self._waves.may_end(self._flags())

    def _end_requests(self) -> None:
        self._take(None)
        if self._core.has_work or self._core.has_requests:
            reason = f"the engine shut down and the request did not finish within {self._drain.timeout:.0f} s"
            if failed := self._core.fail_all(reason):  # 0: a row is left to free, or a step to wait for
                log.warning("drain timeout: %s ended with an error", count(failed, "request"))
            self._send(self._core.step())
