"""Starts requests with incomplete bodies, a few in each turn of the event loop.

Starting a request costs a hundred times more than receiving a part of its body, so without this queue a flood of
uploads would delay all other clients by seconds.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

PER_TURN: Final = 4
"""Requests that start in one turn of the event loop."""


class UploadQueue:
    """First in, first out; one for all connections."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, start: Callable[[], None]) -> None:
        """Call `start` when it is its turn."""
        self._waiting.append(start)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._start_some)

    def _start_some(self) -> None:
        for _ in range(min(PER_TURN, len(self._waiting))):
            self._waiting.popleft()()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._start_some)
