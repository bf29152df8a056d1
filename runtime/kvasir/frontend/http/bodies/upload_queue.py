"""Starts requests with incomplete bodies, a few in each turn of the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

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
