"""KV sources: the engine from which another one fetches the KV blocks of a request instead of computing them.

A request that moves fetches from the engine that had it, which has its output too. Any other request can fetch its
prompt from an engine whose reports list the blocks, if that is faster than to compute them. Fetches are spread over
the sources: one that serves fetches, or that computes a long step, delivers later. A fetch that fails costs only
time, because the engine computes what has not come.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from kvasir.client.dispatch.engine_load import EngineLoad
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine

FETCH_SHARE: Final = 0.1
"""The cost of a fetched token, compared with a computed one: 0.04 to 0.11 with a model of 126 M parameters
(docs/performance.md), and less with larger ones."""
MIN_FETCH_TOKENS: Final = 256
"""The fixed costs of a fetch, in computed tokens: it begins between two steps of the source and ends between two of
its own engine. That is some ten milliseconds each, in which an engine computes about as many tokens."""
MAX_WAIT_SECONDS: Final = 4.0
"""A source that begins to send later is not asked: fetches fail after 5 s without a block (FetchLimits)."""
MAX_FETCHES: Final = 4
"""Fetches from one source at a time, for the requests of this frontend. A source refuses more than 16, see
BlockServer, so four frontends do not exceed this."""


class KvSource(NamedTuple):
    """An engine that holds a prefix of a prompt, and can send it."""

    engine: RemoteEngine
    num_tokens: int
    seconds: float
    """Time until it begins to send."""


class KvSources:
    """Chooses sources, and keeps the fetches of this frontend's requests. The router owns it."""

    def __init__(self, load: Callable[[RemoteEngine], EngineLoad]) -> None:
        self._load = load
        self._fetches: dict[str, dict[str, int]] = {}
        """The tokens that requests fetch now, by source and request."""
        self._source_of: dict[str, str] = {}

    def best(
        self, engines: Iterable[RemoteEngine], leads: Iterable[int], block_size: int, rate: float
    ) -> dict[str, KvSource]:
        """Return the best source by numerics class, of engines with these numbers of leading blocks.

        `rate`: the tokens per second of an engine that was not measured. The best source is the one that saves the
        most time: it holds much of the prompt, and delivers soon.
        """
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
            gain = lead * block_size / rate - seconds
            if engine.numerics not in found or gain > found[engine.numerics][0]:
                found[engine.numerics] = gain, KvSource(engine, lead * block_size, seconds)
        return {numerics: source for numerics, (_, source) in found.items()}

    def sent(self, request_id: str, source: KvSource, num_tokens: int) -> None:
        """Note that the request was sent to an engine that fetches so many tokens from the source."""
        name = source.engine.incarnation
        self._source_of[request_id] = name
        self._fetches.setdefault(name, {})[request_id] = num_tokens

    def ended(self, request_id: str) -> None:
        """Note that the request's fetch, if it had one, is over."""
        if (name := self._source_of.pop(request_id, None)) is not None and name in self._fetches:
            del self._fetches[name][request_id]
            if not self._fetches[name]:
                del self._fetches[name]

    def forget(self, incarnation: str) -> None:
        """Drop a source that is lost."""
        for request_id in self._fetches.pop(incarnation, {}):
            del self._source_of[request_id]

    def _delay(self, engine: RemoteEngine, fetched_tokens: int, rate: float) -> float:
        """Return the time until the engine begins to send: after its present step and the earlier fetches."""
        load = self._load(engine)
        step = load.queued_tokens
        if engine.capacity is not None and engine.capacity.max_num_batched_tokens:
            step = min(step, engine.capacity.max_num_batched_tokens)
        return (step + MIN_FETCH_TOKENS + FETCH_SHARE * fetched_tokens) / (load.prefill_rate or rate)


def serves(engine: RemoteEngine) -> bool:
    """Return whether other engines can fetch blocks from this one. The end of a drain would wait for them."""
    return engine.state is EngineState.READY and bool(engine.kv_address and engine.numerics)


def fetchable(source: KvSource, num_tokens: int, cached: int, queue_seconds: float, rate: float) -> int:
    """Return how many tokens of a request an engine should fetch from the source; 0 if it computes them sooner.

    `cached`: tokens that it holds. `queue_seconds`: time in which it computes earlier requests, while it fetches.
    `rate`: the tokens that it computes per second.
    """
    tokens = min(source.num_tokens, num_tokens - 1) - cached
    if tokens < MIN_FETCH_TOKENS:
        return 0
    wait = max(0.0, source.seconds - queue_seconds)
    return tokens if wait + FETCH_SHARE * tokens / rate < tokens / rate else 0
