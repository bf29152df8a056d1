"""The queue of the requests that wait for room in an engine.

The order is: priority; then requests that an engine had before, the oldest first; then fresh ones, fair among
clients by used tokens (start-time fair queueing, Goyal et al., 1996). A client with one request waits for at most
one of each other client. Operations take logarithmic time.
"""

import time
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

REQUEST_TOKENS: Final = 64
"""Charge per request: short prompts take rows too."""
MIN_KEPT: Final = 256
MAX_CLIENTS: Final = 4096


class Lane(NamedTuple):
    """Requests for the same engines. One without room does not delay other lanes."""

    rank: int | None
    refused_by: tuple[str, ...]
    moved: bool = False
    """Engines had them before; each waits for one that continues it exactly."""
    adapted: bool = False
    """They name LoRA adapters, which not every engine accepts."""


class Waits(Protocol):
    started: float
    waiting_since: float | None
    waited_seconds: float


class Queueable(Protocol):
    @property
    def request_id(self) -> str: ...
    @property
    def client(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def data_parallel_rank(self) -> int | None: ...
    @property
    def refused_by(self) -> tuple[str, ...]: ...
    @property
    def adapter_digest(self) -> str: ...
    @property
    def trace(self) -> Waits: ...


Request = TypeVar("Request", bound=Queueable)


class _Class(NamedTuple):
    priority: int
    is_fresh: bool


class _Place(NamedTuple, Generic[Request]):
    kind: _Class
    started: float
    number: int
    request: Request
    lane: Lane


class _Turn(NamedTuple):
    kind: _Class
    start: float
    """Tokens used by the client."""
    started: float
    number: int
    client: str


@dataclass(slots=True)
class _Usage:
    num_waiting: int = 0
    now: float = 0.0
    used: dict[str, float] = field(default_factory=dict)

    def start(self, client: str) -> float:
        # a client gains nothing from time in which it did not wait
        return max(self.now, self.used.get(client, 0.0))

    def charge(self, client: str, tokens: int) -> None:
        self.now = self.start(client)
        self.used[client] = self.now + tokens
        if len(self.used) > MAX_CLIENTS:
            for name in list(self.used)[: MAX_CLIENTS // 2]:  # the oldest ones
                del self.used[name]


@dataclass(slots=True)
class _Client(Generic[Request]):
    places: list[_Place[Request]] = field(default_factory=list)
    turn: _Turn | None = None


class _LaneQueue(Generic[Request]):
    def __init__(self, usages: dict[_Class, _Usage]) -> None:
        self._usages = usages
        self.clients: dict[str, _Client[Request]] = {}
        # outdated entries are only too early
        self._heap: list[_Turn] = []

    def add(self, place: _Place[Request]) -> None:
        name = place.request.client
        client = self.clients.setdefault(name, _Client())
        insort(client.places, place)
        turn = self._turn(name, client)
        if client.turn is None or turn < client.turn:
            self._push(turn, client)

    def remove(self, place: _Place[Request]) -> None:
        name = place.request.client
        client = self.clients[name]
        del client.places[bisect_left(client.places, place)]
        if not client.places:
            del self.clients[name]

    def first(self) -> tuple[_Turn, Request]:
        while True:
            turn = self._heap[0]
            client = self.clients.get(turn.client)
            current = None if client is None else self._turn(turn.client, client)
            if client is not None and current == turn:
                return turn, client.places[0].request
            heappop(self._heap)
            # its first request or its use has changed, so it gets a later turn
            if client is not None and current is not None and client.turn == turn:
                self._push(current, client)

    def _push(self, turn: _Turn, client: _Client[Request]) -> None:
        if len(self._heap) > 2 * len(self.clients) + MIN_KEPT:
            self._heap = [each.turn for each in self.clients.values() if each.turn is not None]
            heapify(self._heap)
        client.turn = turn
        heappush(self._heap, turn)

    def _turn(self, name: str, client: _Client[Request]) -> _Turn:
        kind, started, number, _, _ = client.places[0]
        return _Turn(kind, self._usages[kind].start(name) if kind.is_fresh else 0.0, started, number, name)


class RequestQueue(Generic[Request]):
    def __init__(self) -> None:
        self._places: dict[str, _Place[Request]] = {}
        self._lanes: dict[Lane, _LaneQueue[Request]] = {}
        self._usages: dict[_Class, _Usage] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Request]:
        return iter([place.request for place in self._places.values()])

    def __contains__(self, request: Queueable) -> bool:
        return request.request_id in self._places

    @property
    def lanes(self) -> Collection[Lane]:
        return self._lanes.keys()

    def of_lane(self, lane: Lane) -> list[Request]:
        clients = self._lanes[lane].clients.values()
        return [place.request for client in clients for place in client.places]

    def add(self, request: Request) -> None:
        assert request.request_id not in self._places
        self._number += 1
        kind = _Class(request.priority, not request.attempt)
        lane = lane_of(request)
        place = _Place(kind, request.trace.started, self._number, request, lane)
        self._usages.setdefault(kind, _Usage()).num_waiting += 1
        if (queue := self._lanes.get(lane)) is None:
            queue = self._lanes[lane] = _LaneQueue(self._usages)
        self._places[request.request_id] = place
        queue.add(place)
        request.trace.waiting_since = time.perf_counter()

    def first(self, skip: Collection[Lane] = ()) -> Request | None:
        """Return the first request outside of the lanes to skip."""
        heads = [queue.first() for lane, queue in self._lanes.items() if lane not in skip]
        return min(heads)[1] if heads else None

    def sent(self, request: Request) -> None:
        kind = self._places[request.request_id].kind
        if kind.is_fresh:
            self._usages[kind].charge(request.client, request.num_tokens + REQUEST_TOKENS)
        self.remove(request)

    def charge(self, request: Request, tokens: int) -> None:
        if (usage := self._usages.get(_Class(request.priority, is_fresh=True))) is not None:
            usage.used[request.client] = usage.start(request.client) + tokens

    def remove(self, request: Request) -> bool:
        place = self._places.pop(request.request_id, None)
        if place is None:
            return False
        queue = self._lanes[place.lane]
        queue.remove(place)
        if not queue.clients:
            del self._lanes[place.lane]
        usage = self._usages[place.kind]
        usage.num_waiting -= 1
        if not usage.num_waiting:
            del self._usages[place.kind]
        trace = request.trace
        assert trace.waiting_since is not None
        trace.waited_seconds += time.perf_counter() - trace.waiting_since
        trace.waiting_since = None
        return True


def lane_of(request: Queueable) -> Lane:
    return Lane(request.data_parallel_rank, request.refused_by, request.attempt > 0, request.adapter_digest != "")
