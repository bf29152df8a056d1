"""TokenBudget: bounds the tokens that wait for a row; a bound on requests would not bound memory."""

import threading
from typing import Final

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.scheduling.endings import Endings
from kvasir.link.protocol import RequestOutput


class RequestRefused(ValueError):
    """The engine can never compute this request."""


class EntranceCheck:
    def __init__(self, endings: Endings, by_priority: bool) -> None:
        self._endings = endings
        self._by_priority = by_priority

    def check(self, request: EngineRequest) -> RequestOutput | None:
        """Return the answer if the request is complete already. Raises RequestRefused."""
        if request.num_prompt_tokens == 0:
            raise RequestRefused("the prompt has no tokens")
        priority = request.core.priority
        if priority and not self._by_priority:
            raise RequestRefused(
                f"priority is {priority}, but this engine serves requests by arrival: leave it out, or "
                "start the engine with --scheduling-policy priority"
            )
        if request.num_output_tokens:
            status = self._endings.status_of(request)
            if status.finished:
                request.status = status
                return self._endings.output(request, request.num_output_tokens, [])
        return None


REQUEST_TOKENS: Final = 512  # per request, for its objects


class TokenBudget:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        return self._held

    def has_room(self, tokens: int) -> bool:
        # An empty budget takes any request; otherwise a very long one would never run.
        return not self._held or self._held + tokens + REQUEST_TOKENS <= self.limit

    def reserve(self, tokens: int, has_begun: bool = False) -> bool:
        with self._lock:
            # A resumed request always gets room: fresh ones would take it first.
            if not (has_begun or self.has_room(tokens)):
                return False
            self._held += tokens + REQUEST_TOKENS
            return True

    def release(self, tokens: int) -> None:
        with self._lock:
            self._held -= tokens + REQUEST_TOKENS
