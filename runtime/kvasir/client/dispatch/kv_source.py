"""The engine from which another one fetches a prompt's KV blocks, if that is faster than computation."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from kvasir.client.dispatch.engine_load import EngineLoad
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine

FETCH_SHARE: Final = 0.1
"""Cost of a fetched token, relative to a computed one (docs/performance.md)."""
MIN_FETCH_TOKENS: Final = 256
"""Fixed cost of a fetch, in computed tokens."""
# for a source to begin to send; fetches fail after 5 s (FetchLimits)
MAX_WAIT_SECONDS: Final = 4.0
# A source rejects more than 16 (BlockServer), so four frontends fit.
MAX_FETCHES: Final = 4


class KvSource(NamedTuple):
    engine: RemoteEngine
    num_tokens: int
    seconds: float
    """Time until the source begins to send."""


class KvSources:
    def __init__(self, load: Callable[[RemoteEngine], EngineLoad]) -> None:
        self._load = load
        # tokens of present fetches, by source and request
        self._fetches: dict[str, dict[str, int]] = {}
        self._source_of: dict[str, str] = {}

    def best(
        self, engines: Iterable[RemoteEngine], leads: Iterable[int], block_size: int, rate: float
    ) -> dict[str, KvSource]:
        """Return the best source of each numerics class."""
        found: dict[str, tuple[float, KvSource]] = {}
        for engine, lead in zip(engines, leads, strict=True):
            if lead * block_size < MIN_FETCH_TOKENS or not serves(engine):
                continue
            fetches = self._fetches.get(engine.incarnation, {})
            if len(fetches) >= MAX_FETCHES:
                continue
            seconds = self._delay(engine, sum(fetches.values()), rate)
            if seconds > MAX_WAIT_SECONDS:
                continue
            # saved seconds
            gain = lead * block_size / rate - seconds
            if engine.numerics not in found or gain > found[engine.numerics][0]:
                found[engine.numerics] = gain, KvSource(engine, lead * block_size, seconds)
        return {numerics: source for numerics, (_, source) in found.items()}

    def sent(self, request_id: str, source: KvSource, num_tokens: int) -> None:
        name = source.engine.incarnation
        self._source_of[request_id] = name
        self._fetches.setdefault(name, {})[request_id] = num_tokens

    def ended(self, request_id: str) -> None:
        if (name := self._source_of.pop(request_id, None)) is not None and name in self._fetches:
            del self._fetches[name][request_id]
            if not self._fetches[name]:
                del self._fetches[name]

    def forget(self, incarnation: str) -> None:
        for request_id in self._fetches.pop(incarnation, {}):
            del self._source_of[request_id]

    def _delay(self, engine: RemoteEngine, fetched_tokens: int, rate: float) -> float:
        load = self._load(engine)
        # an engine sends after its present step and earlier fetches
        step = load.queued_tokens
        if engine.capacity is not None and engine.capacity.max_num_batched_tokens:
            step = min(step, engine.capacity.max_num_batched_tokens)
        return (step + MIN_FETCH_TOKENS + FETCH_SHARE * fetched_tokens) / (load.prefill_rate or rate)


def serves(engine: RemoteEngine) -> bool:
    # a draining engine would wait for fetches
    return engine.state is EngineState.READY and bool(engine.kv_address and engine.numerics)


def fetchable(source: KvSource, num_tokens: int, cached: int, queue_seconds: float, rate: float) -> int:
    """Return the tokens to fetch from the source; 0 if computation is faster.

    `cached`: tokens that the engine holds. `queue_seconds`: time for other requests.
    """
    tokens = min(source.num_tokens, num_tokens - 1) - cached
    if tokens < MIN_FETCH_TOKENS:
        return 0
    wait = max(0.0, source.seconds - queue_seconds)
    return tokens if wait + FETCH_SHARE * tokens / rate < tokens / rate else 0
