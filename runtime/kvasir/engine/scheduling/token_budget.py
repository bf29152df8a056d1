"""TokenBudget: bounds the tokens that wait for a row.

A bound on requests would not bound memory: one has a single token, another 131,072.
"""

import threading
from typing import Final

REQUEST_TOKENS: Final = 512  # added to each request for the memory of its objects


class TokenBudget:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        return self._held

    def has_room(self, tokens: int) -> bool:
        # A request above the limit gets room in an empty budget; otherwise it would never run.
        return not self._held or self._held + tokens + REQUEST_TOKENS <= self.limit

    def reserve(self, tokens: int, has_begun: bool = False) -> bool:
        with self._lock:
            # One that another engine has begun always gets room: fresh ones would take it first. Frontends send few
            # of them at a time.
            if not (has_begun or self.has_room(tokens)):
                return False
            self._held += tokens + REQUEST_TOKENS
            return True

    def release(self, tokens: int) -> None:
        with self._lock:
            self._held -= tokens + REQUEST_TOKENS
