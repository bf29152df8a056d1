"""The router: chooses the engine for each request, the one that will probably serve it first.

The cost of an engine is in seconds: the prefill of the tokens that wait there and of those of the request that its
prefix cache does not hold, the wait for a row, the time by which the requests that run there slow it down, and the
delay that its prefill means for later requests. The delay grows with the share of time in which the engine has
requests that wait: a loaded engine keeps its cached prefixes, an idle one may compute a prefix that another holds.

A decision of this router counts at once; one of another frontend counts with the engine's next report. So a prefix
that all requests share does not end up on one engine: a second engine computes it as soon as that costs less.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from kvasir.client.cache_index import CacheIndex
from kvasir.client.engine_load import EngineLoad
from kvasir.hashing import BlockHashing
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import CacheEvents, RequestOutput
from kvasir.params import SamplingParams

DEFAULT_PREFILL_RATE: Final = 2000.0
"""Tokens per second of an engine when no engine was measured yet."""
DEFAULT_ROW_SECONDS: Final = 2.0
"""Seconds that a request generates, when none has ended yet."""
DEFAULT_ROWS: Final = 64
FULL_ENGINE_SLOWDOWN: Final = 1.0
"""By how much of its own duration a request is slower next to a full engine's other requests."""
DELAY_FACTOR: Final = 2.0
"""Weight of the delay of later requests. With 0, a loaded service computes popular prefixes on all engines."""
MOST_DELAY: Final = 4.0
"""Bound for this delay, in times of the request's own prefill."""
TIE_SHARE: Final = 0.05
"""Estimates differ if they are further apart than this share of the prefill of the whole prompt."""
PREDICTED_SECONDS: Final = 1.0
"""Added to twice the expected prefill: how long the blocks of a request count before its engine reports them."""


class Chains(Protocol):
    """The block hashes of a prompt."""

    def known(self, hashing: BlockHashing) -> bytes: ...


class Routed(Protocol):
    """What the router reads of a request."""

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


@dataclass(slots=True)
class _Choice:
    """An engine for a request, with the estimate."""

    engine: RemoteEngine
    request_id: str
    hit_blocks: int
    num_cached: int
    """Tokens of the request that the engine holds."""
    num_tokens: int
    chain: bytes
    prefill_seconds: float
    cost: float


class Router:
    """Picks engines, and keeps their loads and the content of their prefix caches."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._loads: dict[str, EngineLoad] = {}
        self.index = CacheIndex()
        self._last_cold: dict[str, int] = {}
        """When each engine got its last prompt without cached blocks, counted in requests."""
        self._turn = 0
        self._choice: _Choice | None = None

    # ------------------------------------------------------------------------------------------- observations

    def reported(self, engine: RemoteEngine) -> None:
        """Take the engine's reported load. Requests that it had finished must have left already."""
        if engine.stats is not None:
            self._load(engine.incarnation).reported(engine.stats, self._clock())

    def cache_changed(self, engine: RemoteEngine, message: CacheEvents) -> None:
        self.index.apply(engine.incarnation, message)

    def begun(self, request: Routed, output: RequestOutput) -> None:
        """Take the first output of a request from the engine that has it."""
        if (load := self._loads.get(request.engine)) is not None:
            seconds = None if output.progress is None else output.progress.prefill_seconds
            load.begun(request.request_id, output.num_cached_tokens or 0, seconds, self._clock())

    def begun_at(self, request: Routed) -> float | None:
        """Return when (perf_counter) the first output of the request came from the engine that has it; None if none
        has come."""
        load = self._loads.get(request.engine)
        return None if load is None else load.begun_at(request.request_id)

    def left(self, request_id: str, incarnation: str) -> None:
        """Take the end of a request on an engine, for whatever reason."""
        if (load := self._loads.get(incarnation)) is not None:
            load.left(request_id, self._clock())

    def forget(self, incarnation: str) -> None:
        """Drop everything about an engine that is lost."""
        self._loads.pop(incarnation, None)
        self._last_cold.pop(incarnation, None)
        self.index.forget(incarnation)

    # ---------------------------------------------------------------------------------------------- decisions

    def pick(self, engines: Iterable[RemoteEngine], request: Routed) -> RemoteEngine | None:
        """Return the usable engine for the request; None if no engine is usable. Call `sent` once it has it."""
        usable = [engine for engine in engines if engine.usable]
        if not usable:
            return None
        choices = self._choices(usable, request)
        best = min([choice.cost for choice in choices])
        near = best + TIE_SHARE * request.num_tokens / self._default_rate
        # Cold prompts go to the engine whose last one is the longest ago: so the caches fill evenly.
        choice = min(
            [choice for choice in choices if choice.cost <= near],
            key=lambda choice: (-choice.num_cached, self._last_cold.get(choice.engine.incarnation, 0)),
        )
        self._choice = choice
        return choice.engine

    def load(self, engine: RemoteEngine) -> EngineLoad:
        return self._load(engine.incarnation)

    def sent(self, request: Routed) -> None:
        """Charge the request to the engine that was picked last, which has it now."""
        choice, self._choice = self._choice, None
        assert choice is not None, "pick comes before sent"
        assert choice.request_id == request.request_id, "no other pick comes between pick and sent"
        incarnation = choice.engine.incarnation
        self._turn += 1
        if 2 * choice.num_cached < choice.num_tokens:
            self._last_cold[incarnation] = self._turn
        uncached = choice.num_tokens - choice.num_cached
        now = self._clock()
        self._load(incarnation).sent(request.request_id, choice.num_tokens, uncached, now)
        if choice.chain:
            until = now + 2 * choice.prefill_seconds + PREDICTED_SECONDS
            self.index.predict(incarnation, choice.chain, choice.hit_blocks, now, until)

    def _choices(self, engines: list[RemoteEngine], request: Routed) -> list[_Choice]:
        self._measure_defaults(engines)
        now = self._clock()
        hits = self._hits(engines, request, now)
        num_tokens = request.num_tokens
        choices = []
        for engine in engines:
            blocks, block_size, chain = hits.get(engine.incarnation, (0, 0, b""))
            cached = max(0, min(blocks * block_size, num_tokens - 1))
            prefill, cost = self._estimate(engine, num_tokens - cached, now)
            choices.append(_Choice(engine, request.request_id, blocks, cached, num_tokens, chain, prefill, cost))
        return choices

    def _hits(self, engines: list[RemoteEngine], request: Routed, now: float) -> dict[str, tuple[int, int, bytes]]:
        """Return leading blocks, block size and chain for the engines with a prefix cache, by incarnation."""
        hashes = request.hashes
        if hashes is None or request.params.prompt_logprobs is not None:  # those are never read from a cache
            return {}
        if len(self._loads) < 2:  # there is nothing to compare
            return {}
        same: dict[BlockHashing, list[str]] = {}
        for engine in engines:
            if (hashing := engine.block_hashing) is not None:
                same.setdefault(hashing, []).append(engine.incarnation)
        hits = {}
        for hashing, names in same.items():
            chain = hashes.known(hashing)
            leads = self.index.lookup(chain, names, now)
            hits.update({name: (lead, hashing.block_size, chain) for name, lead in zip(names, leads, strict=True)})
        return hits

    def _estimate(self, engine: RemoteEngine, uncached: int, now: float) -> tuple[float, float]:
        """Return the seconds until the prefill is done, once the request has a row, and the cost in seconds."""
        load = self._load(engine.incarnation)
        capacity = engine.capacity
        rows = DEFAULT_ROWS if capacity is None else capacity.max_num_seqs
        row_seconds = self._default_row_seconds if load.row_seconds is None else load.row_seconds
        requests = load.own + load.others
        rate = load.prefill_rate or self._default_rate
        prefill = (load.uncached_tokens + load.others_tokens + uncached) / rate
        # A row is free again every row_seconds / rows.
        wait = max(0, requests + 1 - rows) * row_seconds / rows
        if capacity is not None and engine.stats is not None and requests:
            needed = engine.stats.kv_blocks_used + uncached // capacity.block_size
            if needed > capacity.num_blocks:  # one of its requests has to end first
                wait += row_seconds / requests
        decode = FULL_ENGINE_SLOWDOWN * row_seconds * min(requests, rows) / rows
        # As in a queue of this utilisation.
        busy = load.busy_share(now)
        delay = min(MOST_DELAY, DELAY_FACTOR * busy / max(1e-3, 1 - busy)) * uncached / rate
        return prefill, prefill + delay + wait + decode

    def _measure_defaults(self, engines: list[RemoteEngine]) -> None:
        """An engine that was not measured yet counts as an average one."""
        loads = [self._load(engine.incarnation) for engine in engines]
        rates = [rate for load in loads if (rate := load.prefill_rate) is not None]
        seconds = [load.row_seconds for load in loads if load.row_seconds is not None]
        self._default_rate = sum(rates) / len(rates) if rates else DEFAULT_PREFILL_RATE
        self._default_row_seconds = sum(seconds) / len(seconds) if seconds else DEFAULT_ROW_SECONDS

    def _load(self, incarnation: str) -> EngineLoad:
        load = self._loads.get(incarnation)
        if load is None:
            load = self._loads[incarnation] = EngineLoad()
        return load
