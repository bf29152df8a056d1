"""Calls to engines, such as the reset of the prefix cache, and their outcomes."""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import Call, Result

CALL_TIMEOUT: Final = 10.0
"""Seconds. Engines answer between two steps."""


@dataclass(frozen=True)
class CallOutcome:
    incarnation: str
    rank: int
    error: str
    values: list[str] = field(default_factory=list)
    value: bytes = b""
    """Msgpack, see Result."""


class Calls:
    """If `send(incarnation, call)` fails, `lost` must follow for that engine."""

    def __init__(self, send: Callable[[str, Call], bool]) -> None:
        self._send = send
        self._ids = itertools.count(1)
        # by incarnation and id
        self._waiting: dict[tuple[str, int], asyncio.Future[Result]] = {}

    async def call(
        self, engines: Iterable[RemoteEngine], method: str, seconds: float, arguments: bytes = b""
    ) -> list[CallOutcome]:
        """Call these engines, and return their outcomes in order, after at most `seconds`."""
        loop = asyncio.get_running_loop()
        called: list[tuple[RemoteEngine, int, asyncio.Future[Result]]] = []
        try:
            for engine in engines:
                id, answer = next(self._ids), loop.create_future()
                self._waiting[engine.incarnation, id] = answer
                called.append((engine, id, answer))
                message = Call(id, method, arguments)
                if engine.agreement.understands(message):
                    self._send(engine.incarnation, message)
                else:
                    answer.set_result(Result(id, f"its version is too old for {method} with arguments: update it"))
            if called:
                await asyncio.wait([answer for *_, answer in called], timeout=seconds)
        finally:
            for engine, id, _ in called:
                del self._waiting[engine.incarnation, id]
        late = f"it did not answer within {seconds:g} s; it may still execute the call"
        results = [(each, answer.result() if answer.done() else Result(id, late)) for each, id, answer in called]
        return [
            CallOutcome(engine.incarnation, engine.rank, result.error, result.values, result.value)
            for engine, result in results
        ]

    def answered(self, incarnation: str, result: Result) -> None:
        answer = self._waiting.get((incarnation, result.id))
        if answer is not None and not answer.done():
            answer.set_result(result)

    def lost(self, incarnation: str, reason: str) -> None:
        for (called, id), answer in self._waiting.items():
            if called == incarnation and not answer.done():
                answer.set_result(Result(id, f"it was lost: {reason}"))
