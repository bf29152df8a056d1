"""The requests that the frontend holds until an engine can take them; owned by the dispatcher.

A request waits in the lane of its data-parallel rank, or in the lane of the requests for any rank. A lane is served
first in, first out, except that requests which an engine had before come first. A client that leaves frees its
place at once. One timer serves all requests; without held requests, there is none.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from kvasir.client.live_request import LiveRequest
from kvasir.client.request_observer import RequestObserver
from kvasir.config.frontend_settings import ServerConfig
from kvasir.tokens import TOKEN_BYTES

Lane = int | None
"""A data-parallel rank; None for the requests that engines of any rank may take."""


@dataclass(frozen=True)
class HoldLimits:
    """Bounds of the requests that wait while no engine is ready."""

    seconds: float
    """Time after which a request fails; with 0 none is held."""
    max_requests: int
    max_bytes: int
    """Of the prompts, four bytes for each token."""

    @classmethod
    def of(cls, config: ServerConfig) -> "HoldLimits":
        return cls(config.hold_timeout, config.max_held_requests, config.max_held_bytes)


@dataclass(slots=True, eq=False)
class _Held:
    request: LiveRequest
    order: tuple[bool, int]
    """Whether the request is fresh, and its number."""
    num_bytes: int
    deadline: float


@dataclass(slots=True)
class _LaneQueue:
    """By request id, in the order of arrival."""

    resumed: dict[str, _Held] = field(default_factory=dict)
    fresh: dict[str, _Held] = field(default_factory=dict)

    def first(self) -> _Held:
        return next(iter((self.resumed or self.fresh).values()))

    def __bool__(self) -> bool:
        return bool(self.resumed or self.fresh)


class Holding:
    """Held requests in the order in which they are to be sent. The owner sends or fails them."""

    def __init__(
        self, limits: HoldLimits, observer: RequestObserver, overdue: Callable[[LiveRequest], bool]
    ) -> None:
        """`overdue`: called for a request at its time limit; returns whether to hold it for that time again.
        Otherwise it must have failed the request."""
        self.limits: Final = limits
        self._observer = observer
        self._overdue = overdue
        self._lanes: dict[Lane, _LaneQueue] = {}
        self._held: dict[str, _Held] = {}
        """By request id, in the order of their deadlines."""
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def lanes(self) -> Collection[Lane]:
        """Return the lanes in which requests wait."""
        return self._lanes.keys()

    def refusal(self, request: LiveRequest) -> str | None:
        """Return the limit that keeps the request from being held, for the message of its error; None if it can be
        held. A request that an engine had before is always held: its client has got a part of its answer."""
        limits = self.limits
        if limits.seconds <= 0:
            return ""
        if request.attempt:
            return None
        if len(self._held) >= limits.max_requests:
            return f", and {len(self._held)} requests wait for one already (--max-held-requests)"
        if self.num_bytes and self.num_bytes + _size(request) > limits.max_bytes:
            return f", and prompts of {self.num_bytes} bytes wait for one already (--max-held-bytes)"
        return None

    def add(self, request: LiveRequest) -> None:
        """Hold the request, whatever the limits."""
        assert request.request_id not in self._held
        request.trace.held_since = time.perf_counter()
        fresh = not request.attempt
        order = (fresh, next(self._numbers))
        held = _Held(request, order, _size(request), asyncio.get_running_loop().time() + self.limits.seconds)
        self._held[request.request_id] = held
        self.num_bytes += held.num_bytes
        lane = self._lanes.setdefault(request.data_parallel_rank, _LaneQueue())
        (lane.fresh if fresh else lane.resumed)[request.request_id] = held
        if self._timer is None:
            self._arm()

    def remove(self, request: LiveRequest) -> bool:
        """Stop holding the request. Returns False if it is not held."""
        held = self._held.pop(request.request_id, None)
        if held is None:
            return False
        self.num_bytes -= held.num_bytes
        lane = self._lanes[request.data_parallel_rank]
        (lane.fresh if held.order[0] else lane.resumed).pop(request.request_id)
        if not lane:
            del self._lanes[request.data_parallel_rank]
        if not self._held and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        trace = request.trace
        assert trace.held_since is not None
        seconds = time.perf_counter() - trace.held_since
        trace.held_since, trace.held_seconds = None, trace.held_seconds + seconds
        self._observer.hold_ended(seconds)
        return True

    def first(self, skip: Collection[Lane] = ()) -> LiveRequest | None:
        """Return the request that is to be sent first, not counting those of the lanes to skip."""
        heads = [lane.first() for rank, lane in self._lanes.items() if rank not in skip]
        return min(heads, key=lambda held: held.order).request if heads else None

    def all(self) -> list[LiveRequest]:
        """Return all held requests."""
        return [held.request for held in self._held.values()]

    def _arm(self) -> None:
        """Wake at the first deadline. It may be of a request that has been sent by then: the next one follows."""
        deadline = next(iter(self._held.values())).deadline
        self._timer = asyncio.get_running_loop().call_at(deadline, self._wake)

    def _wake(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._held and (held := next(iter(self._held.values()))).deadline <= now:
            if self._overdue(held.request):
                held.deadline = now + self.limits.seconds
                self._held[held.request.request_id] = self._held.pop(held.request.request_id)
            else:
                self.remove(held.request)
        if self._held and self._timer is None:
            self._arm()


def _size(request: LiveRequest) -> int:
    return len(request.prompt_token_ids) * TOKEN_BYTES
