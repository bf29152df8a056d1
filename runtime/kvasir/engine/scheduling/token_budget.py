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

    def reserve(self, tokens: int) -> bool:
        """Reserve room for a request of so many tokens; False: there is none.

        A request above the limit gets room when nothing else is reserved, because it would never get it otherwise.
        """
        cost = tokens + REQUEST_TOKENS
        with self._lock:
            if self._held and self._held + cost > self.limit:
                return False
            self._held += cost
            return True

    def release(self, tokens: int) -> None:
        """Return the room of a request of so many tokens."""
        with self._lock:
            self._held -= tokens + REQUEST_TOKENS
