"""Bounds on all request bodies in memory: the arriving and the parsed ones."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from kvasir.client.request_errors import TooManyRequests

# any upload or request that ends makes room
RETRY_AFTER: Final = 1.0
UNCOUNTED: Final = 16 * 1024
"""Parsed bodies up to this size do not count."""


class Uploads:
    """Bytes of incomplete bodies, at most `limit`. A body in one piece is never refused."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def hold(self, size: int) -> None:
        """Raises TooManyRequests, and counts nothing, without room."""
        if self.held + size > self._limit:
            raise TooManyRequests(
                f"{self.held} bytes of other requests' bodies are still arriving, and this frontend receives at "
                f"most {self._limit} bytes at one time (--max-upload-bytes): try again when some have come",
                RETRY_AFTER,
            )
        self.held += size

    def release(self, size: int) -> None:
        self.held -= size


class ParsedBodies:
    """Bytes of running requests' bodies, at most `limit`. A single one is never refused."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def hold(self, size: int) -> None:
        """Raises TooManyRequests, and counts nothing, without room."""
        if self.held and self.held + size > self._limit:
            raise TooManyRequests(
                f"the bodies of running requests take {self.held} bytes and this one {size}, and this frontend "
                f"holds at most {self._limit} (--max-parsed-bytes): try again when some have finished",
                RETRY_AFTER,
            )
        self.held += size

    def release(self, size: int) -> None:
        self.held -= size


PER_TURN: Final = 4


class UploadQueue:
    """First in, first out; one for all connections."""

    # To start a request costs a hundred times more than to receive a part of its body, so a flood of uploads would
    # delay other clients by seconds.
    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, start: Callable[[], None]) -> None:
        self._waiting.append(start)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._start_some)

    def _start_some(self) -> None:
        for _ in range(min(PER_TURN, len(self._waiting))):
            self._waiting.popleft()()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._start_some)
