"""The dispatcher: sends requests to engines. AsyncLLM owns it."""

import asyncio
from collections.abc import Callable
from typing import Final

from kvasir.client.journal import Journal, LiveRequest, RequestState
from kvasir.client.request_errors import EngineUnavailable, RequestFailed
from kvasir.client.request_observer import RequestObserver
from kvasir.client.resumes import Resumes
from kvasir.client.router import Router
from kvasir.client.wave_starts import WaveStarts
from kvasir.link.frontend_end.frontend_link import FrontendLink
from kvasir.link.frontend_end.remote_engine import RemoteEngine

RETRY_AFTER: Final = 5.0
"""Seconds after which a client may try again when no engine is usable: about the shortest restart of an engine."""

NOT_UNDERSTOOD: Final = (
    "every engine that is ready is of an older version, which does not have a parameter of this request: leave the "
    "parameter out, or try again after the engines have been updated"
)


class Dispatcher:
    """Sends each request to an engine, or fails it, in the next turn of the event loop."""

    def __init__(
        self,
        journal: Journal,
        router: Router,
        link: FrontendLink,
        observer: RequestObserver,
        fail: Callable[[LiveRequest, Exception], None],
    ) -> None:
        """`fail`: ends a request that no engine can take, with this error."""
        self._fail = fail
        self._journal = journal
        self._router = router
        self._link = link
        self._observer = observer
        self._resumes = Resumes(journal)
        self._waves = WaveStarts(link.engines, journal.in_flight, link.send)
        self._waiting: list[LiveRequest] = []
        self._closed = False

    def close(self) -> None:
        """Fail the queued requests and all later ones."""
        self._closed = True

    def dispatch(self, request: LiveRequest) -> None:
        """Queue the waiting request for the next turn of the event loop, so that an engine gets several at once and
        batches them."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._dispatch_all)
        self._waiting.append(request)

    def dispatch_elsewhere(self, request: LiveRequest) -> bool:
        """Send a request that its engine refused, or gave back, to the next engine. Returns False if there is none.

        A drain that is over gives many back at once: they wait for room like those of a lost engine.
        """
        request.refused_by = (*request.refused_by, request.engine)
        if self._resumes.postpone(request, self._candidates(request, [])):
            self._journal.requeue(request)
            return True
        return self._send(request) is None

    def unavailable(self, rank: int | None = None) -> EngineUnavailable:
        """Return the error for a request or call that no engine (of this rank) can take now."""
        if self._closed:
            return EngineUnavailable("the frontend is shutting down: try again", RETRY_AFTER)
        engines = [engine for engine in self._link.engines.values() if rank is None or engine.rank == rank]
        states = ", ".join(f"{engine.incarnation} is {engine.state}" for engine in engines)
        of_rank = "" if rank is None else f" of data-parallel rank {rank}"
        return EngineUnavailable(
            f"no engine{of_rank} is ready ({states or 'none is connected'}): try again in a while", RETRY_AFTER
        )

    def _dispatch_all(self) -> None:
        requests, self._waiting = self._waiting, []
        for request in requests:
            if request.state is not RequestState.WAITING:  # its reader has left
                continue
            self._send_or_fail(request, may_wait=True)
        self.dispatch_postponed()

    def dispatch_postponed(self) -> None:
        """Send the moved requests that waited for room in an engine, if it has room for them now."""
        while (first := self._resumes.first_postponed) is not None:
            if self._resumes.must_wait(first, self._candidates(first, [])):
                return
            self._send_or_fail(self._resumes.pop_postponed(), may_wait=False)

    def _send_or_fail(self, request: LiveRequest, may_wait: bool) -> None:
        """Send the request to an engine, or postpone it, or fail it with EngineUnavailable if none can take it."""
        error: Exception | None
        try:
            if may_wait and self._resumes.postpone(request, self._candidates(request, [])):
                return
            error = self._send(request)
            if error is not None and request.refused_by:  # before it was postponed: they may have room now
                request.refused_by = ()
                error = self._send(request)
        except Exception as defect:  # an error in Kvasir fails only this request
            error = defect
        if isinstance(error, EngineUnavailable) and request.lost_engines:
            # Not 503, which invites the client to send at once what may have ended the engine.
            error = RequestFailed(f"the engine {request.lost_engines[-1]} was lost with this request, and {error}")
        if error is not None:
            self._fail(request, error)

    def _send(self, request: LiveRequest) -> EngineUnavailable | None:
        """Send the request to an engine as its next attempt, or return why no engine can take it."""
        # Each failed send removes an engine from the link, and each older engine is skipped once, so this ends.
        older: list[RemoteEngine] = []
        while (engine := self._router.pick(self._candidates(request, older))) and not self._closed:
            message = request.message(engine.block_hashing)
            if not engine.agreement.understands(message):
                older.append(engine)
            elif self._link.send(engine.incarnation, message):
                self._journal.assign(request, engine.incarnation)
                self._waves.request_sent(engine)
                trace = request.trace
                trace.engine, trace.rank, trace.attempts = engine.incarnation, engine.rank, request.attempt
                if request.attempt == 1:
                    self._observer.request_started(trace)
                self._resumes.sent(request, engine)
                return None
        if older and not self._closed:
            return EngineUnavailable(NOT_UNDERSTOOD, RETRY_AFTER)
        return self.unavailable(request.data_parallel_rank)

    def _candidates(self, request: LiveRequest, older: list[RemoteEngine]) -> list[RemoteEngine]:
        rank = request.data_parallel_rank
        engines = [
            engine
            for engine in self._link.engines.values()
            if (rank is None or engine.rank == rank)
            and engine.incarnation not in request.refused_by
            and engine not in older
        ]
        return self._resumes.suitable(request, engines)
