"""Migration: continues the requests of a lost engine on another one, from the journal.

The journal has the prompt, the emitted tokens and the parameters of each request. That is all an engine needs to
continue as if it had computed the tokens itself (AddRequest.output_tokens). The reader of the request sees a pause.

A request that loses several engines may be the cause. It fails after `max_lost_engines` of them in a row on which
it did not get further: a request that ends its engine does so at the same token again.
"""

import logging
from collections.abc import Callable
from typing import Final

from kvasir.client.journal import Journal
from kvasir.client.live_request import LiveRequest, service_order
from kvasir.client.output_processor import OutputProcessor
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.process.words import count

log = logging.getLogger(__name__)

FURTHER_TOKENS: Final = 3
"""Tokens on one engine with which a request has got further: an engine that it ends may not send the last two."""
MAX_LOSSES: Final = 4
"""A request fails after this many times `max_lost_engines`, although it got further: it may fail at any token."""


class Migrations:
    """Moves requests between engines. AsyncLLM owns it, and the dispatcher sends the requests."""

    def __init__(
        self,
        journal: Journal,
        outputs: OutputProcessor,
        dispatch: Callable[[LiveRequest], None],
        max_lost_engines: int,
    ) -> None:
        self._journal = journal
        self._outputs = outputs
        self._dispatch = dispatch
        self._max_lost_engines = max_lost_engines

    def engine_lost(self, engine: RemoteEngine, reason: str) -> None:
        """Move the requests of this engine to others, by priority and age. One that lost too many engines fails."""
        requests = self._journal.of_engine(engine.incarnation)
        for request in sorted(requests, key=service_order):
            request.lost_engines = (*request.lost_engines, engine.incarnation)
            request.refused_by = ()
            request.interrupt("lost")
            request.losses_in_a_row = 1 if request.attempt_tokens >= FURTHER_TOKENS else request.losses_in_a_row + 1
            if self._may_move(request):
                self._journal.requeue(request)
                self._dispatch(request)
            else:
                self._outputs.fail(request, _too_many_losses(request))
        if requests:
            log.error("engine %s was lost with %s: %s", engine.incarnation, count(len(requests), "request"), reason)

    def _may_move(self, request: LiveRequest) -> bool:
        most = self._max_lost_engines
        return request.losses_in_a_row < most and len(request.lost_engines) < MAX_LOSSES * most


def _too_many_losses(request: LiveRequest) -> str:
    number, names = len(request.lost_engines), ", ".join(request.lost_engines)
    lost, last = (
        (f"the engine {names} was", "") if number == 1 else (f"{number} engines ({names}) were", "the last one ")
    )
    tokens = count(len(request.output_token_ids), "token")
    return (
        f"{lost} lost with this request, {last}after {tokens} of the answer: "
        "the request is not sent to another engine (--max-lost-engines)"
    )
