"""GrammarGate: a request with a constraint gets no row before its grammar is compiled.

The loop takes the guide when it queues the request or wakes it, so a wake-up is never too early.
"""

import itertools
import queue
from collections.abc import Callable, Sequence
from typing import Protocol

from kvasir.engine.engine_request import EngineRequest, Guide
from kvasir.engine.scheduling.admission_gates import AdmissionGate, Verdict
from kvasir.request.constraint import OutputConstraint


class GuideSource(Protocol):
    def begin(self, request_id: str, constraint: OutputConstraint, output_token_ids: Sequence[int]) -> None: ...

    def outcome(self, request_id: str) -> Guide | str | None: ...

    def forget(self, request_id: str) -> None: ...

    def close(self) -> None: ...


class GrammarGate(AdmissionGate):
    def __init__(
        self,
        grammars: Callable[[Callable[[str], None]], GuideSource],
        wake: Callable[[str], None] | None = None,
    ) -> None:
        # `wake` gets the ids of requests with a ready guide, in any thread. None: `take` waits.
        self._wake = wake
        self._ready: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._grammars = grammars(self._on_ready)
        self._numbers = itertools.count(1)

    def begin(self, request: EngineRequest, constraint: OutputConstraint) -> None:
        request.guide_ticket = f"{request.request_id}#{next(self._numbers)}"
        output = request.token_ids[request.num_prompt_tokens :]
        self._grammars.begin(request.guide_ticket, constraint, output)

    def take(self, request: EngineRequest) -> str | None:
        """Give the request its guide if it is ready; return a refusal or None."""
        if not request.guide_ticket:
            return None
        outcome = self._grammars.outcome(request.guide_ticket)
        while outcome is None and self._wake is None:
            self._ready.get()
            outcome = self._grammars.outcome(request.guide_ticket)
        if outcome is None or isinstance(outcome, str):
            return outcome
        request.guide = outcome
        self.ended(request)
        return None

    def admits(self, request: EngineRequest) -> Verdict:
        return Verdict.SKIP if request.guide_ticket else Verdict.ADMIT

    def ended(self, request: EngineRequest) -> None:
        if request.guide_ticket:
            self._grammars.forget(request.guide_ticket)
            request.guide_ticket = ""

    def close(self) -> None:
        self._grammars.close()

    def _on_ready(self, ticket: str) -> None:
        if self._wake is None:
            self._ready.put(ticket)
        else:
            self._wake(ticket.rpartition("#")[0])
