"""Calls to engines that are no requests (reset the prefix cache, say) and what came of each; owned by AsyncLLM.

Every engine that was called gets an outcome: its answer, that it was lost, or that it did not answer in time.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import Call, Result

CALL_TIMEOUT: Final = 10.0
"""Seconds for an engine to answer: it does so between two of its steps."""


@dataclass(frozen=True)
class CallOutcome:
    """What one engine answered."""

    incarnation: str
    rank: int
    error: str
    """Why it was not done; empty when it was."""


class Calls:
    """`send(incarnation, call)` tells whether the engine can be reached; it may report it lost meanwhile."""

    def __init__(self, send: Callable[[str, Call], bool]) -> None:
        self._send = send
        self._ids = itertools.count(1)
        self._waiting: dict[tuple[str, int], asyncio.Future[str]] = {}
        """By incarnation and id: a future of the error, empty when it was done."""

    async def call(self, engines: Iterable[RemoteEngine], method: str, seconds: float) -> list[CallOutcome]:
        """Call all of these engines at once; one outcome each, in their order, after at most so many seconds."""
        loop = asyncio.get_running_loop()
        called: list[tuple[RemoteEngine, int, asyncio.Future[str]]] = []
        try:
            for engine in engines:
                id, answer = next(self._ids), loop.create_future()
                self._waiting[engine.incarnation, id] = answer
                called.append((engine, id, answer))
                if not self._send(engine.incarnation, Call(id, method)) and not answer.done():
                    answer.set_result("it was lost")
            if called:
                await asyncio.wait([answer for *_, answer in called], timeout=seconds)
        finally:
            for engine, id, _ in called:
                del self._waiting[engine.incarnation, id]
        late = f"it did not answer within {seconds:g} s; it may still do it"
        return [
            CallOutcome(engine.incarnation, engine.rank, answer.result() if answer.done() else late)
            for engine, _, answer in called
        ]

    def answered(self, incarnation: str, result: Result) -> None:
        """Answers that nobody waits for any more are dropped."""
        answer = self._waiting.get((incarnation, result.id))
        if answer is not None and not answer.done():
            answer.set_result(result.error)

    def lost(self, incarnation: str, reason: str) -> None:
        for (called, _), answer in self._waiting.items():
            if called == incarnation and not answer.done():
                answer.set_result(f"it was lost: {reason}")
