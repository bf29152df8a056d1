"""Gives a request to an engine: Eligibility selects those that may get it, the router picks one."""

from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto

from kvasir.client.dispatch.engine_load import EngineRoom
from kvasir.client.dispatch.request_queue import Lane, lane_of
from kvasir.client.dispatch.router import EngineChoice, Router
from kvasir.client.journal import Journal
from kvasir.client.live_request import LiveRequest
from kvasir.client.moves.resumes import Resumes
from kvasir.client.request_observer import RequestObserver
from kvasir.link.frontend_end.frontend_link import FrontendLink
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import FEATURE_WAVES, StartWave

START = StartWave()


class WaveStarts:
    def __init__(
        self,
        engines: Mapping[str, RemoteEngine],
        in_flight: Callable[[str], int],
        send: Callable[[str, StartWave], object],
    ) -> None:
        self._engines = engines
        self._in_flight = in_flight
        self._send = send

    def request_sent(self, target: RemoteEngine) -> None:
        if not _in_waves(target):
            return
        group = [engine for engine in self._engines.values() if _in_waves(engine)]
        if sum(self._in_flight(engine.incarnation) for engine in group) > 1:
            return  # a wave is running
        # the engine would wake the others one by one along a ring
        for engine in group:
            if engine is not target and engine.agreement.understands(START):
                self._send(engine.incarnation, START)


def _in_waves(engine: RemoteEngine) -> bool:
    return engine.usable and engine.capacity is not None and FEATURE_WAVES in engine.capacity.features


class SendOutcome(Enum):
    SENT = auto()
    NO_ENGINE = auto()
    NOT_UNDERSTOOD = auto()
    """Engines that could take the request have versions without one of its fields."""
    SET_ASIDE = auto()
    """The request has failed, or waits for reports on lost engines."""


class Eligibility:
    def __init__(self, engines: Mapping[str, RemoteEngine], resumes: Resumes, room: EngineRoom) -> None:
        self._engines = engines
        self._resumes = resumes
        self._room = room

    def of_lane(self, lane: Lane) -> list[RemoteEngine]:
        """Return the engines of the lane, usable or not."""
        return [
            engine
            for engine in self._engines.values()
            if (lane.rank is None or engine.rank == lane.rank)
            and engine.incarnation not in lane.refused_by
            and (engine.takes_adapters or not lane.adapted)
        ]

    def suitable(self, request: LiveRequest, without: Collection[RemoteEngine] = ()) -> list[RemoteEngine]:
        engines = self.of_lane(lane_of(request))
        if without:
            engines = [engine for engine in engines if engine not in without]
        if request.adapter_error is not None:  # rather wait for an engine that holds the adapter
            digest = request.adapter_digest
            engines = [each for each in engines if each.usable and digest in each.adapters] or engines
        return engines if request.interruption is None else self._resumes.suitable(request, engines)

    def with_room(self, request: LiveRequest, without: Collection[RemoteEngine] = ()) -> list[RemoteEngine]:
        engines = self.suitable(request, without)
        if request.interruption is None:
            return self._room.choices(engines, request.num_tokens)
        # A moved request needs no room. If all suitable engines are full, it waits: others would not continue it
        # exactly.
        return [engine for engine in engines if not self._room.is_full(engine)]


class Assignment:
    def __init__(
        self,
        journal: Journal,
        router: Router,
        link: FrontendLink,
        observer: RequestObserver,
        eligibility: Eligibility,
        resumes: Resumes,
    ) -> None:
        self._journal = journal
        self._router = router
        self._link = link
        self._observer = observer
        self._eligibility = eligibility
        self._resumes = resumes
        self._waves = WaveStarts(link.engines, journal.in_flight, link.send)

    def assign(self, request: LiveRequest, *, alone: bool, needs_room: bool = True) -> SendOutcome:
        eligible = self._eligibility.with_room if needs_room else self._eligibility.suitable
        peers = self._link.engines
        older: list[RemoteEngine] = []
        # This ends: a failed send removes its engine from the link, and an older engine is tried once.
        while (choice := self._router.pick(eligible(request, older), request, peers.values())) is not None:
            engine, source = choice.engine, _kv_source(request, choice, peers)
            message = request.message(engine.block_hashing, alone, source)
            if not engine.agreement.understands(message):
                older.append(engine)
            elif request.attempt and not needs_room:
                return SendOutcome.NO_ENGINE  # It is full: each refusal would lead to the next one at once.
            elif self._link.send(engine.incarnation, message):
                self._record(request, choice, source)
                return SendOutcome.SENT
        return SendOutcome.NOT_UNDERSTOOD if older else SendOutcome.NO_ENGINE

    def _record(self, request: LiveRequest, choice: EngineChoice, kv_source: str) -> None:
        engine, trace = choice.engine, request.trace
        self._journal.assign(request, engine.incarnation)
        self._router.sent(request, choice, kv_source)
        self._waves.request_sent(engine)
        trace.engine, trace.rank, trace.attempts = engine.incarnation, engine.rank, request.attempt
        if request.attempt == 1:
            self._observer.request_started(trace)
        self._resumes.sent(request, engine)


def _kv_source(request: LiveRequest, choice: EngineChoice, engines: Mapping[str, RemoteEngine]) -> str:
    if request.interruption is None:
        return choice.kv_source
    last, numerics = engines.get(request.last_engine), choice.engine.numerics
    # The last engine also has the output's blocks. Another numerics class computes other values.
    if last is None or last is choice.engine or not numerics or last.numerics != numerics:
        return choice.kv_source
    return last.kv_address or choice.kv_source
