"""TokenBudget: bounds the tokens that wait for a row. The link's thread reserves them, the scheduler releases them.

A number of requests does not bound memory: one request has a single token, another one has 131,072.
"""

import threading
from typing import Final

REQUEST_TOKENS: Final = 512
"""Added to the tokens of each request, for the memory of its objects."""


class TokenBudget:
    """Counts reserved tokens. Any thread may call its methods."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        return self._held

    def has_room(self, tokens: int) -> bool:
        """Return whether `reserve` would succeed now."""
        return not self._held or self._held + tokens + REQUEST_TOKENS <= self.limit

    def reserve(self, tokens: int, has_begun: bool = False) -> bool:
        """Reserve room for a request of so many tokens. Return False if there is no room.

        A request above the limit gets room if nothing else is reserved; otherwise it would never get any. One that
        another engine has begun always gets room, because fresh ones would take it first. Frontends send few of
        them at a time.
        """
        with self._lock:
            if not (has_begun or self.has_room(tokens)):
                return False
            self._held += tokens + REQUEST_TOKENS
            return True

    def release(self, tokens: int) -> None:
        """Release the room of a request of so many tokens."""
        with self._lock:
            self._held -= tokens + REQUEST_TOKENS
