"""TokenBudget: bounds the tokens that wait for a row; a bound on requests would not bound memory."""

import threading
from typing import Final

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
