"""Turns for long work, shared fairly between clients: a client with many texts waits behind its own.

The clients that wait take turns. A client that comes alone with one text waits for at most one text of each other
client, however many they have queued.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Final

current_client: Final[ContextVar[str]] = ContextVar("current_client", default="")
"""Who the running task works for; the frontend sets it when it reads a request."""


class FairQueue:
    """So many turns at a time. Used on one event loop."""

    def __init__(self, turns: int) -> None:
        self._free = turns
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By client, in the order of their next turns."""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        await self._enter(current_client.get())
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, client: str) -> None:
        if self._free:
            self._free -= 1
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # it was given a turn meanwhile
                self._leave()
            raise

    def _leave(self) -> None:
        """Give the turn to the next client that still waits."""
        while self._waiting:
            client = next(iter(self._waiting))
            queue = self._waiting.pop(client)
            future = queue.popleft()
            if queue:
                self._waiting[client] = queue  # behind the others
            if not future.done():
                future.set_result(None)
                return
        self._free += 1
