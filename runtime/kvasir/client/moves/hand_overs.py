"""Hand-overs: moves requests from a draining engine to others with room.

Requests in its queue move, and those that would not end within the drain timeout.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kvasir.client.journal import Journal
from kvasir.client.live_request import LiveRequest, RequestState, service_order
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine

# the engine's speed changes
PLAN_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Drain:
    engine: RemoteEngine
    deadline: float
    leaving: deque[LiveRequest] = field(default_factory=deque)


class HandOvers:
    def __init__(
        self,
        journal: Journal,
        begun_at: Callable[[LiveRequest], float | None],
        move: Callable[[LiveRequest], bool | None],
    ) -> None:
        """`begun_at`: see Router. `move` returns False if a request must wait for room, None if no engine may
        continue it now.
        """
        self._journal = journal
        self._begun_at = begun_at
        self._move = move
        self._drains: dict[str, _Drain] = {}
        self._timer: asyncio.TimerHandle | None = None

    def engine_changed(self, engine: RemoteEngine) -> None:
        drains = engine.state is EngineState.DRAINING and engine.drain_seconds > 0
        if drains and engine.incarnation not in self._drains:
            drain = _Drain(engine, time.perf_counter() + engine.drain_seconds)
            self._drains[engine.incarnation] = drain
            self._plan(drain)
            if self._timer is None:
                self._arm()

    def work(self) -> None:
        for drain in self._drains.values():
            stay: list[LiveRequest] = []
            while drain.leaving:
                request = drain.leaving[0]
                is_there = request.state is RequestState.RUNNING and request.engine == drain.engine.incarnation
                if is_there and not (moved := self._move(request)):
                    if moved is not None:
                        # later requests keep their order
                        break
                    stay.append(request)
                drain.leaving.popleft()
            drain.leaving.extendleft(reversed(stay))

    def forget(self, incarnation: str) -> None:
        self._drains.pop(incarnation, None)
        if not self._drains:
            self.close()

    def close(self) -> None:
        self._drains.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PLAN_SECONDS, self._plan_again)

    def _plan_again(self) -> None:
        self._arm()
        for drain in self._drains.values():
            self._plan(drain)
        self.work()

    def _plan(self, drain: _Drain) -> None:
        engine = drain.engine
        requests = self._journal.of_engine(engine.incarnation)
        unbegun = [request for request in requests if not request.attempt_tokens]
        waiting = 0 if engine.stats is None else engine.stats.waiting
        queued = unbegun[-waiting:] if waiting else []  # engines admit in the order of arrival
        late: list[LiveRequest] = []
        seconds = self._seconds_per_token(requests)
        if seconds is not None:
            tokens_left = (drain.deadline - time.perf_counter()) / seconds
            late = [each for each in requests if each not in queued and _most_tokens(each, engine) > tokens_left]
        drain.leaving = deque(sorted(queued, key=service_order) + sorted(late, key=service_order))

    def _seconds_per_token(self, requests: list[LiveRequest]) -> float | None:
        now = time.perf_counter()
        seconds, tokens = 0.0, 0
        for request in requests:
            begun = self._begun_at(request)
            if begun is not None:
                seconds += now - begun
                tokens += max(1, request.attempt_tokens - 1)
        return seconds / tokens if tokens else None


def _most_tokens(request: LiveRequest, engine: RemoteEngine) -> int:
    most = request.params.max_tokens - len(request.output_token_ids)
    if engine.capacity is None:
        return most
    return min(most, engine.capacity.max_model_len - request.num_tokens)
