"""The dispatcher: sends requests to engines with room, in the order of the frontend's queue. AsyncLLM owns it.

A fresh request gets its engine when one has room for it, so the router decides with the caches and loads of that
time. Requests that engines had before need no room, only their share of the tokens that engines resume.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum, auto

from kvasir.client.dispatch.engine_room import EngineRoom
from kvasir.client.dispatch.engine_starts import EngineStarts
from kvasir.client.dispatch.holding import Holding, HoldLimits
from kvasir.client.dispatch.request_queue import Lane, RequestQueue, lane_of
from kvasir.client.dispatch.router import Router
from kvasir.client.dispatch.unavailability import Unavailability
from kvasir.client.dispatch.wave_starts import WaveStarts
from kvasir.client.gate import Gate
from kvasir.client.journal import Journal
from kvasir.client.live_request import LiveRequest, RequestState
from kvasir.client.moves.kv_source import kv_source
from kvasir.client.moves.resumes import Resumes
from kvasir.client.moves.strikes import REPORT_SECONDS, Strikes, Verdict
from kvasir.client.request_errors import EngineUnavailable, failed_repeatedly
from kvasir.client.request_observer import RequestObserver
from kvasir.link.frontend_end.frontend_link import FrontendLink
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import Abort, RefusalKind

log = logging.getLogger(__name__)


class _Sent(Enum):
    YES = auto()
    NO_ENGINE = auto()
    """No engine can take the request now, or has room for it."""
    NOT_UNDERSTOOD = auto()
    """Every engine that could take it is of a version without a field of the request."""
    NOT_NOW = auto()
    """It has failed, or waits for reports on lost engines, because engines were lost with it."""


class Dispatcher:
    """Sends each request to an engine, queues it, or fails it, in the next turn of the event loop."""

    def __init__(
        self,
        journal: Journal,
        router: Router,
        link: FrontendLink,
        observer: RequestObserver,
        strikes: Strikes,
        fail: Callable[[LiveRequest, Exception], None],
        starts: EngineStarts,
        limits: HoldLimits,
        gate: Gate,
    ) -> None:
        """`fail`: ends a request that no engine can take, or may get, with this error."""
        self._fail = fail
        self._gate = gate
        self._journal = journal
        self._router = router
        self._link = link
        self._observer = observer
        self._strikes = strikes
        self._resumes = Resumes(journal)
        self._waves = WaveStarts(link.engines, journal.in_flight, link.send)
        self._room = EngineRoom(router.load)
        self._arrived: list[LiveRequest] = []
        self._unreported: list[LiveRequest] = []
        """Requests that wait for reports on lost engines (Verdict.WAIT)."""
        self._look_again: asyncio.TimerHandle | None = None
        self._queue: RequestQueue[LiveRequest] = RequestQueue()
        self._holding = Holding(limits, observer, self._overdue)
        self._held_lanes: set[Lane] = set()
        """The lanes whose requests are held, because no engine is ready for them."""
        self._texts = Unavailability(link.engines, starts)
        self._closed = False

    @property
    def num_held(self) -> int:
        """Return the number of requests that wait while no engine is ready for them."""
        return len(self._holding)

    def close(self) -> None:
        """Fail the queued requests that no engine has had, and all later ones."""
        self._closed = True
        for request in self._queue:
            self._remove(request)
            if not request.attempt:
                self._fail(request, self.unavailable())
        self.reconsider()

    def dispatch(self, request: LiveRequest) -> None:
        """Take the waiting request in the next turn of the event loop, so that an engine gets several at once and
        batches them."""
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._dispatch_all)
        self._arrived.append(request)

    def reconsider(self) -> None:
        """Queue the requests that wait for reports on lost engines, because one has come."""
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = None
        unreported, self._unreported = self._unreported, []
        for request in unreported:
            self.dispatch(request)

    def refused(self, request: LiveRequest, refusal: RefusalKind) -> bool:
        """Send a request that its engine refused, or gave back, to another one, or queue it. Returns False if
        neither can be done.

        A full engine may get it later, one that stops does not get it again. A drain that is over gives many back
        at once: they wait for room like those of a lost engine.
        """
        engine = self._link.engines.get(request.engine)
        if refusal is not RefusalKind.OVERLOADED:
            request.refused_by = (*request.refused_by, request.engine)
        elif engine is not None:
            self._room.refused(engine)
        if not self._is_served(lane_of(request)) and (self._closed or self._holding.refusal(request) is not None):
            return False
        self._journal.requeue(request)
        if not self._resumes.postpone(request, self._suitable(request)):
            self._enqueue(request)
        self.release()
        return True

    def hand_over(self, request: LiveRequest) -> bool | None:
        """Send a request that its engine computes to another one that has room, and abort it in its present one.
        Otherwise leaves it there: returns False if it must wait for room, None if no engine may continue it now."""
        candidates = [each for each in self._candidates(lane_of(request)) if self._resumes.continues(request, each)]
        if not candidates or (self._strikes and self._strikes.verdict(request.digest) is not Verdict.RUN):
            return None
        candidates = [engine for engine in candidates if not self._room.is_full(engine)]
        if not self._resumes.has_room(request, candidates):
            return False
        present, interruption = request.engine, request.interruption
        request.interrupt("returned")
        if self._send(request) is not _Sent.YES:
            request.interruption = interruption
            return False
        self._link.send(present, Abort([request.request_id]))
        return True

    def engine_changed(self, engine: RemoteEngine, *, is_step: bool) -> None:
        """Use the room that a report of this engine shows."""
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
        """Send the postponed and queued requests, in order, as long as engines have room; called when one may have
        got some."""
        self._release_postponed()
        blocked: set[Lane] = set()
        while (request := self._queue.first(skip=blocked)) is not None and not self._closed:
            try:
                sent = self._send(request)
                if sent is _Sent.NOT_UNDERSTOOD:  # perhaps an engine without room does
                    sent = self._send(request, paced=False)
            except Exception as error:  # an error in Kvasir fails only this request
                self._remove(request)
                self._fail(request, error)
                continue
            if sent is _Sent.NO_ENGINE:
                blocked.add(lane_of(request))
                continue
            self._remove(request, is_sent=sent is _Sent.YES)
            if sent is _Sent.NOT_UNDERSTOOD:
                self._fail(request, self._texts.not_understood())

    def _release_postponed(self) -> None:
        while (first := self._resumes.first_postponed) is not None:
            if self._resumes.must_wait(first, self._suitable(first)):
                return
            self._dispatch(self._resumes.pop_postponed(), may_wait=False)

    def left(self, request: LiveRequest) -> None:
        """Take the request's place, here or in its engine, for another one: its reader has left."""
        self._remove(request)
        self._queue.charge(request, len(request.output_token_ids))
        self.release()

    def unavailable(self, rank: int | None = None, limit: str = "") -> EngineUnavailable:
        """See Unavailability.error."""
        return self._texts.closed() if self._closed else self._texts.error(rank, limit)

    def waits_for(self, rank: int | None) -> str:
        """See Unavailability.waits_for."""
        return self._texts.waits_for(rank)

    def _dispatch_all(self) -> None:
        requests, self._arrived = self._arrived, []
        for request in requests:
            if request.state is not RequestState.WAITING:  # its reader has left
                continue
            self._dispatch(request, may_wait=True)
        self.release()

    def _dispatch(self, request: LiveRequest, *, may_wait: bool) -> None:
        """Queue the request, or fail it. `may_wait`: a moved one may wait for its share of resumed tokens."""
        try:
            if may_wait and self._resumes.postpone(request, self._suitable(request)):
                return
            if not self._is_served(lane_of(request)):
                request.refused_by = ()  # that was before the request waited: they may be ready now
            # One that moves is sent now: it counts when the next one asks for its share.
            if request.interruption is None or self._send(request) in (_Sent.NO_ENGINE, _Sent.NOT_UNDERSTOOD):
                self._enqueue(request)
        except Exception as error:  # an error in Kvasir fails only this request
            self._fail(request, error)

    def _enqueue(self, request: LiveRequest) -> None:
        """Queue the request, or fail it if no engine is ready for it and it cannot be held."""
        if self._closed:
            self._fail(request, self._texts.lost_or(request, self.unavailable()))
        elif self._is_served(lane_of(request)):
            self._queue.add(request)
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
        """Return whether an engine is ready for the requests of the lane, and the gate is open."""
        return not self._gate.closed and any(engine.usable for engine in self._candidates(lane))

    def _update_held(self) -> None:
        """Hold the requests for which no engine is ready any more, and release those for which one is."""
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

    def _overdue(self, request: LiveRequest) -> None:
        """Fail a request that has waited for the hold timeout."""
        self._queue.remove(request)
        limit = f", and the request has waited {self._holding.limits.seconds:g} s for one (--hold-timeout)"
        self._fail(request, self._texts.lost_or(request, self.unavailable(request.data_parallel_rank, limit)))

    def _send(self, request: LiveRequest, *, paced: bool = True) -> _Sent:
        """Send the request to an engine as its next attempt, if one can take it. `paced`: and has room."""
        verdict = self._strikes.verdict(request.digest) if self._strikes else Verdict.RUN
        if verdict is Verdict.REFUSE:
            log.error("request %s is refused: engines failed in steps that computed it", request.request_id)
            self._fail(request, failed_repeatedly(self._strikes.count(request.digest)))
            return _Sent.NOT_NOW
        if verdict is Verdict.WAIT and not self._closed:
            self._wait_for_reports(request)
            return _Sent.NOT_NOW
        if request.weights and self._resumes.is_orphaned(request, self._candidates(lane_of(request))):
            self._fail(request, self._texts.weights_replaced())
            return _Sent.NOT_NOW
        # Each failed send removes an engine from the link, and each older engine is skipped once, so this ends.
        older: list[RemoteEngine] = []
        while not self._closed and not self._gate.closed:
            candidates = [each for each in self._candidates(lane_of(request)) if each not in older]
            candidates = self._resumes.suitable(request, candidates)
            if paced:  # if all are full, a moved request waits for them: others would not continue it exactly
                candidates = self._with_room(candidates, request)
            peers = self._link.engines
            engine = self._router.pick(candidates, request, peers.values())
            if engine is None:
                break
            source = kv_source(request, engine, peers) or self._router.kv_source
            message = request.message(engine.block_hashing, verdict is Verdict.ALONE, source)
            if not engine.agreement.understands(message):
                older.append(engine)
            elif self._link.send(engine.incarnation, message):
                self._journal.assign(request, engine.incarnation)
                self._router.sent(request, source)
                self._waves.request_sent(engine)
                trace = request.trace
                trace.engine, trace.rank, trace.attempts = engine.incarnation, engine.rank, request.attempt
                if request.attempt == 1:
                    self._observer.request_started(trace)
                self._resumes.sent(request, engine)
                return _Sent.YES
        return _Sent.NOT_UNDERSTOOD if older and not self._closed else _Sent.NO_ENGINE

    def _wait_for_reports(self, request: LiveRequest) -> None:
        if request.state is RequestState.RUNNING:
            self._journal.requeue(request)
        self._unreported.append(request)
        if self._look_again is None:
            self._look_again = asyncio.get_running_loop().call_later(REPORT_SECONDS, self.reconsider)

    def _candidates(self, lane: Lane) -> list[RemoteEngine]:
        """Return the engines that requests of this lane may be sent to once they are usable."""
        return [
            engine
            for engine in self._link.engines.values()
            if (lane.rank is None or engine.rank == lane.rank) and engine.incarnation not in lane.refused_by
        ]

    def _suitable(self, request: LiveRequest) -> list[RemoteEngine]:
        return self._resumes.suitable(request, self._candidates(lane_of(request)))

    def _with_room(self, engines: list[RemoteEngine], request: LiveRequest) -> list[RemoteEngine]:
        """Return the engines that the request may be sent to now. One that moves needs no room."""
        if request.interruption is not None:
            return [engine for engine in engines if not self._room.is_full(engine)]
        return self._room.choices(engines, request.num_tokens)
