"""The dispatcher: sends requests to engines, and holds them while no engine can take them. AsyncLLM owns it."""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from kvasir.client.engine_starts import DEFAULT_RETRY_AFTER, EngineStarts
from kvasir.client.holding import Holding, HoldLimits, Lane
from kvasir.client.journal import Journal
from kvasir.client.live_request import LiveRequest, RequestState
from kvasir.client.request_errors import EngineUnavailable, RequestFailed, failed_repeatedly
from kvasir.client.request_observer import RequestObserver
from kvasir.client.resumes import Resumes
from kvasir.client.router import Router
from kvasir.client.strikes import REPORT_SECONDS, Strikes, Verdict
from kvasir.client.wave_starts import WaveStarts
from kvasir.link.frontend_end.frontend_link import FrontendLink
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import Abort, RefusalKind

log = logging.getLogger(__name__)

MIN_QUEUED_REQUESTS: Final = 2
QUEUED_SHARE: Final = 8
"""Of held requests, an engine gets as many as it has rows, and an eighth more, at least MIN_QUEUED_REQUESTS: enough
to refill the rows that end within two steps. The others stay here, for engines that become ready later."""

NOT_UNDERSTOOD: Final = (
    "every engine that is ready is of an older version, which does not have a parameter of this request: leave the "
    "parameter out, or try again after the engines have been updated"
)


class _Sent(Enum):
    YES = auto()
    NO_ENGINE = auto()
    """No engine can take the request now."""
    NOT_UNDERSTOOD = auto()
    """Every engine that could take it is of a version without a field of the request."""
    NOT_NOW = auto()
    """It was refused, or waits for reports on lost engines, because engines were lost with it."""


class Dispatcher:
    """Sends each request to an engine, holds it, or fails it, in the next turn of the event loop."""

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
    ) -> None:
        """`fail`: ends a request that no engine can take, or may get, with this error."""
        self._fail = fail
        self._journal = journal
        self._router = router
        self._link = link
        self._observer = observer
        self._starts = starts
        self._strikes = strikes
        self._resumes = Resumes(journal)
        self._waves = WaveStarts(link.engines, journal.in_flight, link.send)
        self._waiting: list[LiveRequest] = []
        self._unreported: list[LiveRequest] = []
        """Requests that wait for reports on lost engines (Verdict.WAIT)."""
        self._look_again: asyncio.TimerHandle | None = None
        self._holding = Holding(limits, observer, self._hold_longer)
        self._closed = False

    @property
    def num_held(self) -> int:
        """Return the number of requests that wait for an engine."""
        return len(self._holding)

    def close(self) -> None:
        """Fail the queued and held requests, and all later ones."""
        self._closed = True
        for request in self._holding.all():
            self._holding.remove(request)
            self._fail(request, self.unavailable())
        self.reconsider()

    def dispatch(self, request: LiveRequest) -> None:
        """Queue the waiting request for the next turn of the event loop, so that an engine gets several at once and
        batches them."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._dispatch_all)
        self._waiting.append(request)

    def reconsider(self) -> None:
        """Queue the requests that wait for reports on lost engines, because one has come."""
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = None
        unreported, self._unreported = self._unreported, []
        for request in unreported:
            self.dispatch(request)

    def dispatch_elsewhere(self, request: LiveRequest, refusal: RefusalKind) -> bool:
        """Send a request that its engine refused, or gave back, to the next engine, or hold it if its engine is
        stopping. Returns False if neither can be done.

        A drain that is over gives many back at once: they wait for room like those of a lost engine.
        """
        request.refused_by = (*request.refused_by, request.engine)
        if self._resumes.postpone(request, self._suitable(request)):
            self._journal.requeue(request)
            return True
        if self._send(request) in (_Sent.YES, _Sent.NOT_NOW):
            return True
        if refusal is not RefusalKind.UNAVAILABLE or self._closed or self._holding.refusal(request) is not None:
            return False
        self._journal.requeue(request)
        self._holding.add(request)
        return True

    def hand_over(self, request: LiveRequest) -> bool:
        """Send a request that its engine computes to another one that has room, and abort it in its present one.
        Returns False, and leaves it there, if none can take it now."""
        if self._is_behind(request) or not self._resumes.may_continue(request, self._candidates(request)):
            return False
        if self._strikes and self._strikes.verdict(request.digest) is not Verdict.RUN:
            return False
        present, interruption = request.engine, request.interruption
        request.interrupt("returned")
        if self._send(request) is not _Sent.YES:
            request.interruption = interruption
            return False
        self._link.send(present, Abort([request.request_id]))
        return True

    def release(self) -> None:
        """Send the postponed and held requests, in order, as long as engines have room; called when one may have
        got some."""
        self._release_postponed()
        blocked: set[Lane] = set()
        while (request := self._holding.first(skip=blocked)) is not None and not self._closed:
            try:
                sent = self._send(request, paced=True)
                if sent is _Sent.NOT_UNDERSTOOD:  # perhaps an engine without room does
                    sent = self._send(request)
            except Exception as error:  # an error in Kvasir fails only this request
                self._holding.remove(request)
                self._fail(request, error)
                continue
            if sent is _Sent.NO_ENGINE:
                blocked.add(request.data_parallel_rank)
                continue
            self._holding.remove(request)
            if sent is _Sent.NOT_UNDERSTOOD:
                self._fail(request, EngineUnavailable(NOT_UNDERSTOOD, self._starts.retry_after()))

    def _release_postponed(self) -> None:
        while (first := self._resumes.first_postponed) is not None:
            if self._resumes.must_wait(first, self._suitable(first)):
                return
            self._dispatch(self._resumes.pop_postponed(), may_wait=False)

    def left(self, request: LiveRequest) -> None:
        """Take the request's place, here or in its engine, for another one: its reader has left."""
        self._holding.remove(request)
        self.release()

    def unavailable(self, rank: int | None = None, limit: str = "") -> EngineUnavailable:
        """Return the error for a request or call that no engine (of this rank) can take now.

        `limit`: the limit that kept the request from waiting, as `Holding.refusal` returns it.
        """
        if self._closed:
            return EngineUnavailable("the frontend is shutting down: try again", DEFAULT_RETRY_AFTER)
        engines = [engine for engine in self._link.engines.values() if rank is None or engine.rank == rank]
        states = ", ".join(f"{engine.incarnation} is {engine.state}" for engine in engines)
        of_rank = "" if rank is None else f" of data-parallel rank {rank}"
        return EngineUnavailable(
            f"no engine{of_rank} is ready ({states or 'none is connected'}){limit}: try again in a while",
            self._starts.retry_after(),
        )

    def waits_for(self, rank: int | None) -> str:
        """Return the text for the client of a held request: the progress of the engine that is closest to Ready."""
        engines = self._engines_of(rank)
        if any(engine.usable for engine in engines):
            return "waiting for room in an engine"
        of_rank = "" if rank is None else f" of data-parallel rank {rank}"
        return f"waiting for an engine{of_rank}: {self._starts.describe(engines)}"

    def _dispatch_all(self) -> None:
        requests, self._waiting = self._waiting, []
        for request in requests:
            if request.state is not RequestState.WAITING:  # its reader has left
                continue
            self._dispatch(request, may_wait=True)
        self.release()

    def _dispatch(self, request: LiveRequest, *, may_wait: bool) -> None:
        """Send the request, hold it, or fail it. `may_wait`: a moved one may wait for room in the engines."""
        try:
            if may_wait and self._resumes.postpone(request, self._suitable(request)):
                return
            if self._is_behind(request):
                self._holding.add(request)
            else:
                self._send_or_hold(request)
        except Exception as error:  # an error in Kvasir fails only this request
            self._fail(request, error)

    def _send_or_hold(self, request: LiveRequest) -> None:
        sent = self._send(request)
        if sent in (_Sent.NO_ENGINE, _Sent.NOT_UNDERSTOOD) and request.refused_by:
            request.refused_by = ()  # that was before the request waited: they may have room now
            sent = self._send(request)
        match sent:
            case _Sent.NOT_UNDERSTOOD:
                self._fail(request, EngineUnavailable(NOT_UNDERSTOOD, self._starts.retry_after()))
            case _Sent.NO_ENGINE:
                limit = "" if self._closed else self._holding.refusal(request)
                if limit is None:
                    self._holding.add(request)
                else:
                    self._fail(request, self._no_engine(request, limit))
            case _Sent.YES | _Sent.NOT_NOW:
                pass

    def _no_engine(self, request: LiveRequest, limit: str) -> Exception:
        error = self.unavailable(request.data_parallel_rank, limit)
        if not request.lost_engines:
            return error
        # Not 503, which invites the client to send at once what may have ended the engine.
        return RequestFailed(f"the engine {request.lost_engines[-1]} was lost with this request, and {error}")

    def _is_behind(self, request: LiveRequest) -> bool:
        """Return whether held requests wait for room in the engines that are usable for this one.

        It then waits behind them. Only --max-live-requests limits that, not the limits of held requests.
        """
        lanes = self._holding.lanes
        if not lanes or self._closed:
            return False
        ranks = {engine.rank for engine in self._candidates(request) if engine.usable}
        return bool(ranks) and (None in lanes or not ranks.isdisjoint(lanes))

    def _hold_longer(self, request: LiveRequest) -> bool:
        """Return whether a request that has waited for the hold timeout waits further, for room in an engine.
        Otherwise fail it."""
        if any(engine.usable for engine in self._candidates(request)):
            return True
        limit = f", and the request has waited {self._holding.limits.seconds:g} s for one (--hold-timeout)"
        self._fail(request, self.unavailable(request.data_parallel_rank, limit))
        return False

    def _send(self, request: LiveRequest, *, paced: bool = False) -> _Sent:
        """Send the request to an engine as its next attempt, if one can take it. `paced`: and has room."""
        verdict = self._strikes.verdict(request.digest) if self._strikes else Verdict.RUN
        if verdict is Verdict.REFUSE:
            log.error("request %s is refused: engines failed in steps that computed it", request.request_id)
            self._fail(request, failed_repeatedly(self._strikes.count(request.digest)))
            return _Sent.NOT_NOW
        if verdict is Verdict.WAIT and not self._closed:
            self._wait_for_reports(request)
            return _Sent.NOT_NOW
        # Each failed send removes an engine from the link, and each older engine is skipped once, so this ends.
        older: list[RemoteEngine] = []
        while not self._closed:
            candidates = [
                each
                for each in self._candidates(request)
                if each not in older and (not paced or self._has_room(each))
            ]
            engine = self._router.pick(self._resumes.suitable(request, candidates), request)
            if engine is None:
                break
            message = request.message(engine.block_hashing, alone=verdict is Verdict.ALONE)
            if not engine.agreement.understands(message):
                older.append(engine)
            elif self._link.send(engine.incarnation, message):
                self._journal.assign(request, engine.incarnation)
                self._router.sent(request)
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

    def _candidates(self, request: LiveRequest) -> list[RemoteEngine]:
        """Return the engines that the request may be sent to once they are usable."""
        engines = self._engines_of(request.data_parallel_rank)
        return [engine for engine in engines if engine.incarnation not in request.refused_by]

    def _suitable(self, request: LiveRequest) -> list[RemoteEngine]:
        return self._resumes.suitable(request, self._candidates(request))

    def _engines_of(self, rank: int | None) -> list[RemoteEngine]:
        return [engine for engine in self._link.engines.values() if rank is None or engine.rank == rank]

    def _has_room(self, engine: RemoteEngine) -> bool:
        """Return whether the engine takes held requests."""
        if engine.capacity is None:
            return False
        rows = engine.capacity.max_num_seqs
        return self._router.load(engine) < rows + max(MIN_QUEUED_REQUESTS, rows // QUEUED_SHARE)
