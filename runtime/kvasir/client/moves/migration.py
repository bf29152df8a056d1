"""Continues the requests of a lost engine on another one, from prompt, output and parameters."""

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
"""Tokens that count as progress: a failing engine may not send its last two."""
MAX_LOSSES: Final = 4
"""Limit for a request with progress, as a multiple of `max_lost_engines`."""


class Migrations:
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
        requests = self._journal.of_engine(engine.incarnation)
        for request in sorted(requests, key=service_order):
            request.lost_engines = (*request.lost_engines, engine.incarnation)
            request.forget_refusals()
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
