"""Ways to pick an engine: Kvasir's router, the same with perfect knowledge, and those of other servers."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from kvasir.client.dispatch.cache_index import CacheIndex, Leads
from kvasir.client.dispatch.engine_load import EngineRoom
from kvasir.client.dispatch.request_queue import RequestQueue
from kvasir.client.dispatch.router import Router
from kvasir.client.request_observer import Trace
from kvasir.link.protocol import CacheEvents, RequestOutput
from kvasir.request.hashing import BlockHashing, split_chain
from kvasir.request.params import SamplingParams

from .engines import Clock, SimulatedEngine
from .traces import HASHING, Turn


@dataclass
class Request:
    """A turn on its way, as the router reads it."""

    request_id: str
    turn: Turn
    params: SamplingParams
    arrived: float
    session: int
    place: int
    engine: str = ""
    client: str = ""
    priority: int = 0
    attempt: int = 0
    data_parallel_rank: int | None = None
    refused_by: tuple[str, ...] = ()
    trace: Trace = field(default_factory=Trace)

    @property
    def num_tokens(self) -> int:
        return len(self.turn.prompt)

    @property
    def adapter_digest(self) -> str:
        return self.turn.adapter

    @property
    def hashes(self) -> "Request":
        return self

    def known(self, hashing: BlockHashing) -> bytes:
        assert hashing == HASHING
        return self.turn.chain


class Policy:
    """Counts the requests of each engine. A frontend has one policy object."""

    def __init__(self, engines: Sequence[SimulatedEngine], clock: Clock) -> None:
        self.engines = list(engines)
        self.load = [0] * len(engines)

    def pick(self, request: Request) -> int:
        raise NotImplementedError

    # Engines fetch KV blocks from each other.
    fetches = False

    # From which the last picked request fetches its blocks.
    kv_source = ""

    def next_sent(self, arrived: Request | None) -> tuple[Request, int] | None:
        """Return a request and the place of the engine that gets it now, or None. `arrived`: a new request."""
        return None if arrived is None else (arrived, self.pick(arrived))

    def sent(self, request: Request, place: int) -> None:
        self.load[place] += 1

    def begun(self, request: Request, output: RequestOutput) -> None: ...

    def left(self, request: Request, place: int) -> None:
        self.load[place] -= 1

    def reported(self, place: int) -> None: ...

    def cache_changed(self, place: int, message: CacheEvents) -> None: ...


class RoundRobin(Policy):
    turn = -1

    def pick(self, request: Request) -> int:
        self.turn += 1
        return self.turn % len(self.engines)


class LeastLoad(RoundRobin):
    def pick(self, request: Request) -> int:
        first = super().pick(request)
        places = [(first + step) % len(self.engines) for step in range(len(self.engines))]
        return min(places, key=self.load.__getitem__)


class BoundedHash(Policy):
    """Consistent hashing with bounded loads, as in KubeAI: by the first message, with a load factor of 125 %."""

    key_tokens = 32
    virtual_nodes = 256
    load_factor = 1.25

    def __init__(self, engines: Sequence[SimulatedEngine], clock: Clock) -> None:
        super().__init__(engines, clock)
        names = [
            (f"{engine.name}-{n}", place) for place, engine in enumerate(engines) for n in range(self.virtual_nodes)
        ]
        self._ring = sorted((self._hash(name.encode()), place) for name, place in names)

    def pick(self, request: Request) -> int:
        first = request.turn.system
        key = self._hash(request.turn.prompt[first : first + self.key_tokens].tobytes())
        bound = self.load_factor * (sum(self.load) + 1) / len(self.load)
        start = bisect.bisect(self._ring, (key, -1))
        for step in range(len(self._ring)):
            place = self._ring[(start + step) % len(self._ring)][1]
            if self.load[place] + 1 <= max(1.0, bound):
                return place
        return min(range(len(self.load)), key=self.load.__getitem__)

    def _hash(self, data: bytes) -> int:
        return int.from_bytes(blake2b(data, digest_size=8).digest())


class ApproximateTree(Policy):
    """A prefix tree of the prompts sent to each engine, as in SGLang's router. It does not see evictions.

    If less than half of the prompt matches, the smallest tree gets it; with unequal loads the shortest queue
    does.
    """

    threshold = 0.5
    absolute, relative = 32, 1.5

    def __init__(self, engines: Sequence[SimulatedEngine], clock: Clock) -> None:
        super().__init__(engines, clock)
        self._sent: list[set[bytes]] = [set() for _ in engines]

    def pick(self, request: Request) -> int:
        least, most = min(self.load), max(self.load)
        if most - least > self.absolute and most > self.relative * least:
            return self.load.index(least)
        hashes = split_chain(request.turn.chain)
        matches = [self._match(sent, hashes) for sent in self._sent]
        best = max(range(len(matches)), key=matches.__getitem__)
        if matches[best] > self.threshold * len(hashes):
            return best
        return min(range(len(matches)), key=lambda place: len(self._sent[place]))

    def sent(self, request: Request, place: int) -> None:
        super().sent(request, place)
        self._sent[place].update(split_chain(request.turn.chain))

    def _match(self, sent: set[bytes], hashes: list[bytes]) -> int:
        return next((place for place, block_hash in enumerate(hashes) if block_hash not in sent), len(hashes))


class EarlyBinding(Policy):
    """The real router, fed by the real reports. Each request is sent at once."""

    def __init__(self, engines: Sequence[SimulatedEngine], clock: Clock) -> None:
        super().__init__(engines, clock)
        self.router = Router(clock)
        self._remotes = [engine.remote for engine in engines]

    def pick(self, request: Request) -> int:
        choice = self.router.pick(self._remotes, request)
        assert choice is not None
        self.router.sent(request, choice)
        return self._remotes.index(choice.engine)

    def begun(self, request: Request, output: RequestOutput) -> None:
        self.router.begun(request, output)

    def left(self, request: Request, place: int) -> None:
        super().left(request, place)
        self.router.left(request.request_id, request.engine)

    def reported(self, place: int) -> None:
        self.router.reported(self._remotes[place])

    def cache_changed(self, place: int, message: CacheEvents) -> None:
        self.router.cache_changed(self._remotes[place], message)


class Kvasir(EarlyBinding):
    """The real queue too: a request is sent when an engine has room."""

    def __init__(self, engines: Sequence[SimulatedEngine], clock: Clock) -> None:
        super().__init__(engines, clock)
        self._queue: RequestQueue[Request] = RequestQueue()
        self._room = EngineRoom(self.router.load)

    def next_sent(self, arrived: Request | None) -> tuple[Request, int] | None:
        if arrived is not None:
            self._queue.add(arrived)
        if (request := self._queue.first()) is None:
            return None
        engines = self._room.choices(self._remotes, request.num_tokens)
        if (choice := self.router.pick(engines, request, self._remotes)) is None:
            return None
        self.kv_source = choice.kv_source
        self._queue.sent(request)
        self.router.sent(request, choice)
        return request, self._remotes.index(choice.engine)


class Fetching(Kvasir):
    fetches = True


class _TrueIndex(CacheIndex):
    """Reads the caches of the engines now."""

    def __init__(self, engines: Sequence[SimulatedEngine]) -> None:
        super().__init__()
        self._real = {engine.name: engine for engine in engines}

    def lookup(self, packed: bytes, engines: Sequence[str], now: float) -> Leads:
        hashes = split_chain(packed)
        leads = [
            next((place for place, h in enumerate(hashes) if not self._real[engine].holds(h)), len(hashes))
            for engine in engines
        ]
        return Leads(leads, leads)

    def apply(self, engine: str, message: CacheEvents) -> None: ...

    def predict(self, engine: str, packed: bytes, first: int, now: float, until: float) -> None: ...


class Oracle(Kvasir):
    def __init__(self, engines: Sequence[SimulatedEngine], clock: Clock) -> None:
        super().__init__(engines, clock)
        self.router.index = _TrueIndex(engines)


POLICIES: dict[str, type[Policy]] = {
    "round robin": RoundRobin,
    "least load": LeastLoad,
    "CHWBL": BoundedHash,
    "approximate tree": ApproximateTree,
    "early binding": EarlyBinding,
    "kvasir": Kvasir,
    "kvasir, fetching": Fetching,
    "oracle": Oracle,
}
