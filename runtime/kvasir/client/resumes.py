"""Resumes: which engines may continue a request that another one has begun. Owned by the dispatcher."""

from kvasir.client.journal import LiveRequest
from kvasir.client.request_observer import RequestObserver
from kvasir.link.frontend_end.remote_engine import RemoteEngine


class Resumes:
    """Prefers engines that continue a request exactly, and reports the moves."""

    def __init__(self, observer: RequestObserver) -> None:
        self._observer = observer

    def suitable(self, request: LiveRequest, engines: list[RemoteEngine]) -> list[RemoteEngine]:
        """Return the engines that may get the request now.

        A request that moves goes to an engine that can hold the whole answer, and one with tokens to an engine of
        its numerics class, as long as there are any.
        """
        if request.interruption is None:
            return engines
        usable = [engine for engine in engines if engine.usable]
        fitting = [engine for engine in usable if _fits(request, engine)] or usable
        if not request.output_token_ids:
            return fitting
        return [engine for engine in fitting if _continues_exactly(request, engine)] or fitting

    def sent(self, request: LiveRequest, engine: RemoteEngine) -> None:
        """Note the engine that got the request, and report a move."""
        if (interruption := request.interruption) is not None:
            self._observer.request_moved(request.trace, interruption.reason, _continues_exactly(request, engine))
        request.numerics = engine.numerics


def _fits(request: LiveRequest, engine: RemoteEngine) -> bool:
    """Return whether the engine can hold the whole answer: it would end a longer one early."""
    longest = len(request.prompt_token_ids) + request.params.max_tokens
    return engine.capacity is not None and longest <= engine.capacity.max_model_len


def _continues_exactly(request: LiveRequest, engine: RemoteEngine) -> bool:
    return not request.output_token_ids or (engine.numerics != "" and engine.numerics == request.numerics)
