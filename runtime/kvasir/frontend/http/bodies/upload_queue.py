"""Starts the requests whose bodies are not complete yet: a few in each turn of the event loop.

Starting a request costs a hundred times more than receiving some of its body. A flood of uploads would delay
everybody by seconds; in this queue they delay each other. A request that has come as a whole does not wait here.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

PER_TURN: Final = 4
"""Requests that start before the event loop turns to other work."""


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
