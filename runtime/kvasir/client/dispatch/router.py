"""The router: picks the engine that will probably serve a request first.

`Router._choice` estimates an engine's cost in seconds. An own decision counts at once, another frontend's with the
engine's next report. The constants come from the simulator (bench/routing).
"""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from kvasir.client.dispatch.adapter_places import AdapterPlaces
from kvasir.client.dispatch.cache_index import CacheIndex
from kvasir.client.dispatch.engine_load import EngineLoad
from kvasir.client.dispatch.kv_source import FETCH_SHARE, MIN_FETCH_TOKENS, KvSource, KvSources, fetchable, serves
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import CacheEvents, RequestOutput
from kvasir.request.hashing import BlockHashing
from kvasir.request.params import SamplingParams

DEFAULT_PREFILL_RATE: Final = 2000.0
"""Tokens per second."""
DEFAULT_ROW_SECONDS: Final = 2.0
DEFAULT_ROWS: Final = 64
FULL_ENGINE_SLOWDOWN: Final = 1.0
"""Additional duration of a request in a full engine, relative to its own."""
# with 0, a loaded service computes popular prefixes on all engines
DELAY_FACTOR: Final = 2.0
MAX_DELAY: Final = 4.0
"""Multiple of the request's own prefill."""
TIE_SHARE: Final = 0.05
"""Costs that differ by less than this share of the prompt's prefill are equal."""
PREDICTED_SECONDS: Final = 1.0
ADAPTER_SECONDS: Final = 0.5
"""To read an adapter that the engine does not hold."""


class Chains(Protocol):
    def known(self, hashing: BlockHashing) -> bytes: ...


class Routed(Protocol):
    @property
    def request_id(self) -> str: ...
    @property
    def engine(self) -> str: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def hashes(self) -> Chains | None: ...
    @property
    def params(self) -> SamplingParams: ...
    @property
    def adapter_digest(self) -> str: ...


class _Hit(NamedTuple):
    """Leading blocks of a prompt that an engine holds or will compute, and a source of more."""

    blocks: int = 0
    block_size: int = 0
    chain: bytes = b""
    source: KvSource | None = None


_NO_HIT: Final = _Hit()


@dataclass(slots=True)
class EngineChoice:
    """Estimates for an engine. `num_…`: tokens of the request."""

    engine: RemoteEngine
    hit_blocks: int
    num_cached: int
    num_tokens: int
    chain: bytes
    source: KvSource | None
    num_fetched: int
    prefill_seconds: float
    cost: float

    @property
    def work(self) -> int:
        return _work(self.num_tokens - self.num_cached, self.num_fetched)

    @property
    def kv_source(self) -> str:
        return self.source.engine.kv_address if self.source is not None and self.num_fetched else ""


class Router:
    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._loads: dict[str, EngineLoad] = {}
        self.index = CacheIndex()
        self._last_cold: dict[str, int] = {}
        self._turn = 0
        self._sources = KvSources(self.load)
        self._adapters = AdapterPlaces()

    # ------------------------------------------------------------------------------------------- observations

    def reported(self, engine: RemoteEngine) -> None:
        """Requests that the engine has finished must have left already."""
        if engine.stats is not None:
            self._load(engine.incarnation).reported(engine.stats, self._clock())

    def cache_changed(self, engine: RemoteEngine, message: CacheEvents) -> None:
        self.index.apply(engine.incarnation, message)

    def begun(self, request: Routed, output: RequestOutput) -> None:
        self._sources.ended(request.request_id)
        if (load := self._loads.get(request.engine)) is not None:
            seconds = None if output.progress is None else output.progress.prefill_seconds
            load.begun(request.request_id, output.num_cached_tokens or 0, seconds, self._clock())

    def begun_at(self, request: Routed) -> float | None:
        """Return when (perf_counter) the first output came, or None."""
        load = self._loads.get(request.engine)
        return None if load is None else load.begun_at(request.request_id)

    def left(self, request_id: str, incarnation: str) -> None:
        self._sources.ended(request_id)
        if (load := self._loads.get(incarnation)) is not None:
            load.left(request_id, self._clock())

    def forget(self, incarnation: str) -> None:
        self._sources.forget(incarnation)
        self._loads.pop(incarnation, None)
        self._last_cold.pop(incarnation, None)
        self._adapters.forget(incarnation)
        self.index.forget(incarnation)

    # ---------------------------------------------------------------------------------------------- decisions

    def pick(
        self, engines: Iterable[RemoteEngine], request: Routed, peers: Collection[RemoteEngine] = ()
    ) -> EngineChoice | None:
        """Return the choice, or None without a usable engine. KV blocks may come from `peers`."""
        usable = [engine for engine in engines if engine.usable]
        if not usable:
            return None
        choices = self._choices(usable, request, peers)
        if len(choices) == 1:
            return choices[0]
        best = min([choice.cost for choice in choices])
        near = best + TIE_SHARE * request.num_tokens / self._default_rate
        # A cold prompt goes to the engine whose last one is the oldest, so that caches fill evenly.
        return min(
            [choice for choice in choices if choice.cost <= near],
            key=lambda choice: (-choice.num_cached, self._last_cold.get(choice.engine.incarnation, 0)),
        )

    def load(self, engine: RemoteEngine) -> EngineLoad:
        return self._load(engine.incarnation)

    def sent(self, request: Routed, choice: EngineChoice, kv_source: str = "") -> None:
        """Charge the request to its engine, with this AddRequest.kv_source."""
        incarnation = choice.engine.incarnation
        self._turn += 1
        if 2 * choice.num_cached < choice.num_tokens:
            self._last_cold[incarnation] = self._turn
        now = self._clock()
        self._adapters.sent(request.adapter_digest, incarnation, now)
        self._load(incarnation).sent(request.request_id, choice.num_tokens, choice.work, now)
        if choice.source is not None and kv_source and kv_source == choice.kv_source:
            self._sources.sent(request.request_id, choice.source, choice.num_fetched)
        if choice.chain:
            until = now + 2 * choice.prefill_seconds + PREDICTED_SECONDS
            self.index.predict(incarnation, choice.chain, choice.hit_blocks, now, until)

    def _choices(
        self, engines: list[RemoteEngine], request: Routed, peers: Collection[RemoteEngine] = ()
    ) -> list[EngineChoice]:
        self._measure_defaults(engines)
        now = self._clock()
        hits = self._hits(engines, request, peers, now)
        tokens, missing = request.num_tokens, self._adapters.missing(request.adapter_digest, engines, now)
        choices = [self._choice(engine, tokens, hits.get(engine.incarnation, _NO_HIT), now) for engine in engines]
        for choice in choices:
            if choice.engine.incarnation in missing:
                choice.cost += ADAPTER_SECONDS
        return choices

    def _hits(
        self, engines: list[RemoteEngine], request: Routed, peers: Collection[RemoteEngine], now: float
    ) -> dict[str, _Hit]:
        # One engine needs no comparison, and prompt log probabilities are never cached.
        if len(self._loads) < 2 or (hashes := request.hashes) is None or request.params.prompt_logprobs is not None:
            return {}
        same: dict[BlockHashing, dict[str, RemoteEngine]] = {}
        for engine in engines:
            if (hashing := engine.block_hashing) is not None:
                same.setdefault(hashing, {})[engine.incarnation] = engine
        if request.num_tokens > MIN_FETCH_TOKENS:
            usable = {engine.incarnation for engine in engines}
            for peer in peers:
                if peer.incarnation not in usable and serves(peer) and (hashing := peer.block_hashing) in same:
                    same[hashing][peer.incarnation] = peer
        hits = {}
        for hashing, named in same.items():
            chain, size = hashes.known(hashing), hashing.block_size
            held, expected = self.index.lookup(chain, list(named), now)
            sources: dict[str, KvSource] = {}
            if (max(held) - min(expected)) * size >= MIN_FETCH_TOKENS:
                sources = self._sources.best(named.values(), held, size, self._default_rate)
            hits.update(
                {
                    name: _Hit(lead, size, chain, sources.get(engine.numerics) if engine.kv_address else None)
                    for (name, engine), lead in zip(named.items(), expected, strict=True)
                }
            )
        return hits

    def _choice(self, engine: RemoteEngine, num_tokens: int, hit: _Hit, now: float) -> EngineChoice:
        source = hit.source
        cached = max(0, min(hit.blocks * hit.block_size, num_tokens - 1))
        load = self._load(engine.incarnation)
        capacity = engine.capacity
        rows = DEFAULT_ROWS if capacity is None else capacity.max_num_seqs
        row_seconds = self._default_row_seconds if load.row_seconds is None else load.row_seconds
        requests = load.own + load.others
        rate = load.prefill_rate or self._default_rate
        queue = (load.uncached_tokens + load.others_tokens) / rate
        fetched = 0 if source is None else fetchable(source, num_tokens, cached, queue, rate)
        work = _work(num_tokens - cached, fetched) / rate
        prefill = (max(queue, source.seconds) if source is not None and fetched else queue) + work
        # A row ends every row_seconds / rows: with 64 rows of 2 s, the 65th request waits for 1/32 s.
        wait = max(0, requests + 1 - rows) * row_seconds / rows
        if capacity is not None and engine.stats is not None and requests:
            needed = engine.stats.kv_blocks_used + (num_tokens - cached) // capacity.block_size
            if needed > capacity.num_blocks:
                wait += row_seconds / requests
        decode = FULL_ENGINE_SLOWDOWN * row_seconds * min(requests, rows) / rows
        # As in a queue of this utilisation: at 0.5, one prefill waits behind each; at 0.8, four.
        busy = load.busy_share(now)
        # Fetched tokens count in full, because they also evict other blocks.
        delay = min(MAX_DELAY, DELAY_FACTOR * busy / max(1e-3, 1 - busy)) * (num_tokens - cached) / rate
        cost = prefill + delay + wait + decode
        return EngineChoice(engine, hit.blocks, cached, num_tokens, hit.chain, source, fetched, prefill, cost)

    def _measure_defaults(self, engines: list[RemoteEngine]) -> None:
        rates, seconds = [], []
        for engine in engines:
            load = self._load(engine.incarnation)
            if (rate := load.prefill_rate) is not None:
                rates.append(rate)
            if load.row_seconds is not None:
                seconds.append(load.row_seconds)
        self._default_rate = sum(rates) / len(rates) if rates else DEFAULT_PREFILL_RATE
        self._default_row_seconds = sum(seconds) / len(seconds) if seconds else DEFAULT_ROW_SECONDS

    def _load(self, incarnation: str) -> EngineLoad:
        load = self._loads.get(incarnation)
        if load is None:
            load = self._loads[incarnation] = EngineLoad()
        return load


def _work(uncached: int, fetched: int) -> int:
    return uncached - fetched + int(FETCH_SHARE * fetched)
