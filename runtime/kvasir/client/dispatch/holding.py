"""Bounds on the requests that wait in the queue while no engine is ready."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvasir.client.live_request import LiveRequest
from kvasir.client.request_observer import RequestObserver
from kvasir.config.frontend_settings import ServerConfig
from kvasir.request.tokens import TOKEN_BYTES


@dataclass(frozen=True)
class HoldLimits:
    seconds: float
    """Time until a request fails; 0: none is held."""
    max_requests: int
    max_bytes: int

    @classmethod
    def of(cls, config: ServerConfig) -> "HoldLimits":
        return cls(config.hold_timeout, config.max_held_requests, config.max_held_bytes)


@dataclass(slots=True, eq=False)
class _Held:
    request: LiveRequest
    num_bytes: int
    since: float
    deadline: float


class Holding:
    def __init__(
        self, limits: HoldLimits, observer: RequestObserver, overdue: Callable[[LiveRequest], None]
    ) -> None:
        self.limits: Final = limits
        self._observer = observer
        self._overdue = overdue
        # by request id, in the order of deadlines
        self._held: dict[str, _Held] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def refusal(self, request: LiveRequest) -> str | None:
        """Return the reached limit for an error, or None."""
        limits = self.limits
        if limits.seconds <= 0:
            return ""
        # always held, as its client has a part of the answer
        if request.attempt:
            return None
        if len(self._held) >= limits.max_requests:
            return f", and {len(self._held)} requests wait for one already (--max-held-requests)"
        if self.num_bytes and self.num_bytes + _size(request) > limits.max_bytes:
            return f", and prompts of {self.num_bytes} bytes wait for one already (--max-held-bytes)"
        return None

    def add(self, request: LiveRequest) -> None:
        if request.request_id in self._held:
            return
        deadline = asyncio.get_running_loop().time() + self.limits.seconds
        held = _Held(request, _size(request), time.perf_counter(), deadline)
        self._held[request.request_id] = held
        self.num_bytes += held.num_bytes
        if self._timer is None:
            self._arm()

    def remove(self, request: LiveRequest) -> None:
        held = self._held.pop(request.request_id, None)
        if held is None:
            return
        self.num_bytes -= held.num_bytes
        if not self._held and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._observer.hold_ended(time.perf_counter() - held.since)

    def _arm(self) -> None:
        # that request may be gone by then
        deadline = next(iter(self._held.values())).deadline
        self._timer = asyncio.get_running_loop().call_at(deadline, self._wake)

    def _wake(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._held and (held := next(iter(self._held.values()))).deadline <= now:
            self.remove(held.request)
            self._overdue(held.request)
        if self._held and self._timer is None:
            self._arm()


def _size(request: LiveRequest) -> int:
    return len(request.prompt_token_ids) * TOKEN_BYTES
