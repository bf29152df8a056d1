"""Selects the engines that may continue a request."""

from bisect import insort
from typing import Final

from kvasir.client.journal import Journal
from kvasir.client.live_request import LiveRequest, RequestState, service_order
from kvasir.link.frontend_end.remote_engine import RemoteEngine

# otherwise a lost engine's requests would fill every step of the others for seconds
MAX_RESUMING_TOKENS: Final = 2048
"""Tokens of moved requests that an engine computes again at a time, or one larger request."""


class Resumes:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.postponed: list[LiveRequest] = []

    @property
    def first_postponed(self) -> LiveRequest | None:
        while self.postponed and self.postponed[0].state is not RequestState.WAITING:
            del self.postponed[0]
        return self.postponed[0] if self.postponed else None

    def postpone(self, request: LiveRequest, engines: list[RemoteEngine]) -> bool:
        """Keep a moved request until `pop_postponed` if these engines lack room, or others wait."""
        if request.interruption is None or not engines:
            return False
        if self.first_postponed is None and not self.must_wait(request, engines):
            return False
        insort(self.postponed, request, key=service_order)
        return True

    def must_wait(self, request: LiveRequest, engines: list[RemoteEngine]) -> bool:
        return bool(engines) and not any(self._has_room(engine, request) for engine in engines)

    def pop_postponed(self) -> LiveRequest:
        return self.postponed.pop(0)

    def continues(self, request: LiveRequest, engine: RemoteEngine) -> bool:
        is_suitable = engine.usable and _has_its_weights(request, engine) and _fits(request, engine)
        return is_suitable and _continues_exactly(request, engine)

    def has_room(self, request: LiveRequest, engines: list[RemoteEngine]) -> bool:
        return self.first_postponed is None and any(self._has_room(engine, request) for engine in engines)

    def _has_room(self, engine: RemoteEngine, request: LiveRequest) -> bool:
        resuming = self._journal.resuming_tokens(engine.incarnation)
        return resuming == 0 or resuming + request.num_tokens <= MAX_RESUMING_TOKENS

    def suitable(self, request: LiveRequest, engines: list[RemoteEngine]) -> list[RemoteEngine]:
        """Return the engines to which a moved request may go."""
        # Never other weights; another numerics class or a shorter context only without a better engine.
        usable = [engine for engine in engines if engine.usable and _has_its_weights(request, engine)]
        fitting = [engine for engine in usable if _fits(request, engine)] or usable
        best = [engine for engine in fitting if _continues_exactly(request, engine)] or fitting
        return [engine for engine in best if self._has_room(engine, request)] or best

    def is_orphaned(self, request: LiveRequest, engines: list[RemoteEngine]) -> bool:
        """Return whether only engines with other weights are left."""
        known = [engine for engine in engines if engine.capacity is not None]
        return any(engine.usable for engine in known) and not any(_has_its_weights(request, each) for each in known)

    def sent(self, request: LiveRequest, engine: RemoteEngine) -> None:
        if not request.output_token_ids:
            request.weights = engine.weights
        # tokens keep their class until the engine has continued them
        if (interruption := request.interruption) is None:
            request.numerics = engine.numerics
        else:
            interruption.numerics, interruption.exact = engine.numerics, _continues_exactly(request, engine)


def _has_its_weights(request: LiveRequest, engine: RemoteEngine) -> bool:
    begun = request.weights if request.output_token_ids else ""
    return not begun or not engine.weights or engine.weights == begun


def _fits(request: LiveRequest, engine: RemoteEngine) -> bool:
    if request.priority and not engine.serves_by_priority:
        return False
    longest = len(request.prompt_token_ids) + request.params.max_tokens
    return engine.capacity is not None and longest <= engine.capacity.max_model_len


def _continues_exactly(request: LiveRequest, engine: RemoteEngine) -> bool:
    return not request.output_token_ids or (engine.numerics != "" and engine.numerics == request.numerics)
