"""The dispatcher: sends requests to engines with room, in the order of the queue.

A request is assigned when an engine has room, so the router uses the caches and loads of that time.
"""

import asyncio
import logging
from collections.abc import Callable

from kvasir.client.dispatch.assignment import Assignment, Eligibility, SendOutcome
from kvasir.client.dispatch.engine_load import EngineRoom
from kvasir.client.dispatch.holding import Holding, HoldLimits
from kvasir.client.dispatch.request_queue import Lane, RequestQueue, lane_of
from kvasir.client.dispatch.router import Router
from kvasir.client.dispatch.unavailability import Unavailability
from kvasir.client.engine_starts import EngineStarts
from kvasir.client.journal import Journal
from kvasir.client.live_request import LiveRequest, RequestState
from kvasir.client.moves.quarantine import REPORT_SECONDS, Quarantine, Treatment
from kvasir.client.moves.resumes import Resumes
from kvasir.client.request_errors import EngineUnavailable, failed_repeatedly, failure_of
from kvasir.client.request_observer import RequestObserver
from kvasir.client.zero_gate import ZeroGate
from kvasir.link.frontend_end.frontend_link import FrontendLink
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import Abort, RefusalKind

log = logging.getLogger(__name__)


class Dispatcher:
    def __init__(
        self,
        journal: Journal,
        router: Router,
        link: FrontendLink,
        observer: RequestObserver,
        quarantine: Quarantine,
        fail: Callable[[LiveRequest, Exception], None],
        starts: EngineStarts,
        limits: HoldLimits,
        gate: ZeroGate,
    ) -> None:
        self._fail = fail
        self._gate = gate
        self._journal = journal
        self._link = link
        self._quarantine = quarantine
        self._resumes = Resumes(journal)
        self._room = EngineRoom(router.load)
        self._eligibility = Eligibility(link.engines, self._resumes, self._room)
        self._assignment = Assignment(journal, router, link, observer, self._eligibility, self._resumes)
        self._arrived: list[LiveRequest] = []
        self._unreported: list[LiveRequest] = []
        self._look_again: asyncio.TimerHandle | None = None
        self._queue: RequestQueue[LiveRequest] = RequestQueue()
        self._holding = Holding(limits, observer, self._overdue)
        self._held_lanes: set[Lane] = set()
        """Lanes without a ready engine."""
        self._texts = Unavailability(link.engines, starts)
        self._closed = False

    @property
    def num_held(self) -> int:
        return len(self._holding)

    def close(self) -> None:
        """Fail the queued requests that were never sent, and all later ones."""
        self._closed = True
        for request in self._queue:
            self._remove(request)
            if not request.attempt:
                self._fail(request, self.unavailable())
        self.reconsider()

    def dispatch(self, request: LiveRequest) -> None:
        """Send or queue a waiting request in the next turn of the event loop, so that engines get batches."""
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._dispatch_all)
        self._arrived.append(request)

    def reconsider(self) -> None:
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = None
        unreported, self._unreported = self._unreported, []
        for request in unreported:
            self.dispatch(request)

    def refused(self, request: LiveRequest, refusal: RefusalKind, error: str) -> bool:
        """Queue a request that its engine refused or gave back. Return False if it cannot wait."""
        if refusal in (RefusalKind.ADAPTER_UNFIT, RefusalKind.ADAPTER_UNREAD):
            request.adapter_error = failure_of(error, refusal)
        engine = self._link.engines.get(request.engine)
        # a full engine may get it again later, a stopping one may not
        if refusal is not RefusalKind.OVERLOADED:
            request.refused_by = (*request.refused_by, request.engine)
        elif engine is not None:
            self._room.refused(engine)
        if not self._is_served(lane_of(request)) and (
            self._closed
            or self._texts.no_adapters(request) is not None
            or self._holding.refusal(request) is not None
        ):
            return False
        self._journal.requeue(request)
        if not self._resumes.postpone(request, self._eligibility.suitable(request)):
            self._enqueue(request)
        self.release()
        return True

    def hand_over(self, request: LiveRequest) -> bool | None:
        """Move a running request to another engine.

        If none has room, returns False; if none may continue it, None. Then it goes on where it is.
        """
        engines = self._eligibility.of_lane(lane_of(request))
        candidates = [engine for engine in engines if self._resumes.continues(request, engine)]
        if not candidates or (self._quarantine and self._quarantine.treatment(request.digest) is not Treatment.RUN):
            return None
        candidates = [engine for engine in candidates if not self._room.is_full(engine)]
        if not self._resumes.has_room(request, candidates):
            return False
        present, interruption = request.engine, request.interruption
        request.interrupt("returned")
        if self._send(request) is not SendOutcome.SENT:
            request.interruption = interruption
            return False
        self._link.send(present, Abort([request.request_id]))
        return True

    def engine_changed(self, engine: RemoteEngine, *, is_step: bool) -> None:
        self._room.reported(engine, is_step)
        if not is_step:
            self._update_held()
        self.release()

    def gate_opened(self) -> None:
        self._update_held()
        self.release()

    def engine_lost(self, incarnation: str) -> None:
        self._room.forget(incarnation)
        self._update_held()
        self.release()

    def release(self) -> None:
        """Send the postponed and the queued requests, in order, while engines have room."""
        self._release_postponed()
        blocked: set[Lane] = set()
        while (request := self._queue.first(skip=blocked)) is not None and not self._closed:
            outcome = self._send_or_fail(request)
            if outcome is SendOutcome.NO_ENGINE:
                blocked.add(lane_of(request))
            else:
                self._remove(request, is_sent=outcome is SendOutcome.SENT)

    def _release_postponed(self) -> None:
        while (first := self._resumes.first_postponed) is not None:
            if self._resumes.must_wait(first, self._eligibility.suitable(first)):
                return
            self._dispatch(self._resumes.pop_postponed(), at_once=True, may_wait=False)

    def left(self, request: LiveRequest) -> None:
        self._remove(request)
        self._queue.charge(request, len(request.output_token_ids))
        self.release()

    def unavailable(self, rank: int | None = None, limit: str = "") -> EngineUnavailable:
        return self._texts.closed() if self._closed else self._texts.error(rank, limit)

    def waits_for(self, rank: int | None) -> str:
        return self._texts.waits_for(rank)

    def _dispatch_all(self) -> None:
        arrived, self._arrived = self._arrived, []
        requests = [request for request in arrived if request.state is RequestState.WAITING]  # has a reader still
        is_alone = len(requests) == 1 and not self._queue and not self._resumes.postponed
        for request in requests:
            self._dispatch(request, at_once=is_alone, may_wait=True)
        if not is_alone:
            self.release()

    def _dispatch(self, request: LiveRequest, *, at_once: bool, may_wait: bool) -> None:
        """Send or queue the request. `may_wait`: a moved one may wait for its share of the resumed tokens."""
        is_moved = request.interruption is not None
        try:
            if is_moved and may_wait and self._resumes.postpone(request, self._eligibility.suitable(request)):
                return
            if request.refused_by and not self._is_served(lane_of(request)):
                request.forget_refusals()  # that was before the request waited: these engines may be ready now
            # A moved request is sent now: it counts when the next one asks for its share.
            if not (at_once or is_moved) or self._send_or_fail(request) is SendOutcome.NO_ENGINE:
                self._enqueue(request)
        except Exception as error:  # an error in Kvasir fails only this request
            self._fail(request, error)

    def _enqueue(self, request: LiveRequest) -> None:
        """Queue the request, or fail it if no engine is ready for it and it cannot be held."""
        if self._closed:
            self._fail(request, self._texts.lost_or(request, self.unavailable()))
        elif self._is_served(lane_of(request)):
            self._queue.add(request)
        elif (error := self._texts.no_adapters(request)) is not None:
            self._fail(request, self._texts.lost_or(request, error))
        elif (limit := self._holding.refusal(request)) is None:
            self._queue.add(request)
            self._holding.add(request)
        else:
            self._fail(request, self._texts.lost_or(request, self.unavailable(request.data_parallel_rank, limit)))

    def _remove(self, request: LiveRequest, is_sent: bool = False) -> None:
        if is_sent:
            self._queue.sent(request)
        else:
            self._queue.remove(request)
        self._holding.remove(request)

    def _is_served(self, lane: Lane) -> bool:
        return not self._gate.closed and any(engine.usable for engine in self._eligibility.of_lane(lane))

    def _update_held(self) -> None:
        self._held_lanes &= set(self._queue.lanes)
        for lane in self._queue.lanes:
            if self._is_served(lane):
                self._held_lanes.discard(lane)
                if self._holding:
                    for request in self._queue.of_lane(lane):
                        self._holding.remove(request)
            elif lane not in self._held_lanes:
                self._held_lanes.add(lane)
                for request in self._queue.of_lane(lane):
                    self._holding.add(request)
        self._fail_without_adapter()

    def _fail_without_adapter(self) -> None:
        lanes = [lane for lane in self._queue.lanes if lane.refused_by]
        refused = [request for lane in lanes for request in self._queue.of_lane(lane)]
        for request in refused:
            if request.adapter_error is not None and (error := self._texts.no_adapters(request)) is not None:
                self._remove(request)
                self._fail(request, error)

    def _overdue(self, request: LiveRequest) -> None:
        self._queue.remove(request)
        limit = f", and the request has waited {self._holding.limits.seconds:g} s for one (--hold-timeout)"
        error = request.adapter_error or self.unavailable(request.data_parallel_rank, limit)
        self._fail(request, self._texts.lost_or(request, error))

    def _send_or_fail(self, request: LiveRequest) -> SendOutcome:
        """Send the request, or fail it if no engine will ever take it."""
        try:
            outcome = self._send(request)
            if outcome is SendOutcome.NOT_UNDERSTOOD:  # perhaps a full engine does
                outcome = self._send(request, needs_room=False)
            if outcome is SendOutcome.NOT_UNDERSTOOD:
                self._fail(request, self._texts.not_understood())
                return SendOutcome.SET_ASIDE
            return outcome
        except Exception as error:  # an error in Kvasir fails only this request
            self._fail(request, error)
            return SendOutcome.SET_ASIDE

    def _send(self, request: LiveRequest, *, needs_room: bool = True) -> SendOutcome:
        treatment = self._quarantine.treatment(request.digest) if self._quarantine else Treatment.RUN
        if treatment is Treatment.REFUSE:
            log.error("request %s is refused: engines failed in steps that computed it", request.request_id)
            self._fail(request, failed_repeatedly(self._quarantine.count(request.digest)))
            return SendOutcome.SET_ASIDE
        if treatment is Treatment.WAIT and not self._closed:
            self._wait_for_reports(request)
            return SendOutcome.SET_ASIDE
        if request.weights and self._resumes.is_orphaned(request, self._eligibility.of_lane(lane_of(request))):
            self._fail(request, self._texts.weights_replaced())
            return SendOutcome.SET_ASIDE
        if self._closed or self._gate.closed:
            return SendOutcome.NO_ENGINE
        return self._assignment.assign(request, alone=treatment is Treatment.ALONE, needs_room=needs_room)

    def _wait_for_reports(self, request: LiveRequest) -> None:
        if request.state is RequestState.RUNNING:
            self._journal.requeue(request)
        self._unreported.append(request)
        if self._look_again is None:
            self._look_again = asyncio.get_running_loop().call_later(REPORT_SECONDS, self.reconsider)
