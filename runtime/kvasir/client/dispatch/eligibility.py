"""Selects the engines to which a request may be sent."""

from collections.abc import Collection, Mapping

from kvasir.client.dispatch.engine_room import EngineRoom
from kvasir.client.dispatch.request_queue import Lane, lane_of
from kvasir.client.live_request import LiveRequest
from kvasir.client.moves.resumes import Resumes
from kvasir.link.frontend_end.remote_engine import RemoteEngine


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
            if (lane.rank is None or engine.rank == lane.rank) and engine.incarnation not in lane.refused_by
        ]

    def suitable(self, request: LiveRequest, without: Collection[RemoteEngine] = ()) -> list[RemoteEngine]:
        engines = self.of_lane(lane_of(request))
        if without:
            engines = [engine for engine in engines if engine not in without]
        return engines if request.interruption is None else self._resumes.suitable(request, engines)

    def with_room(self, request: LiveRequest, without: Collection[RemoteEngine] = ()) -> list[RemoteEngine]:
        engines = self.suitable(request, without)
        if request.interruption is None:
            return self._room.choices(engines, request.num_tokens)
        # A moved request needs no room. If all suitable engines are full, it waits: others would not continue it
        # exactly.
        return [engine for engine in engines if not self._room.is_full(engine)]
