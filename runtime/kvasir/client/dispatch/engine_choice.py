"""The router's choice of an engine for a request, with the estimates behind it."""

from dataclasses import dataclass

from kvasir.client.moves.kv_source import FETCH_SHARE, KvSource
from kvasir.link.frontend_end.remote_engine import RemoteEngine


@dataclass(slots=True)
class EngineChoice:
    """An engine that a request may be sent to. `Router.sent` takes the one that was used."""

    engine: RemoteEngine
    hit_blocks: int
    """Leading blocks of the prompt that the engine holds, or is about to compute."""
    num_cached: int
    """Tokens of the request in these blocks."""
    num_tokens: int
    chain: bytes
    """Hashes of the prompt's blocks."""
    source: KvSource | None
    num_fetched: int
    """Tokens of the request that the engine fetches from the source."""
    prefill_seconds: float
    cost: float
    """Estimated seconds until the request is served, and the delay of others."""

    @property
    def work(self) -> int:
        """Return the tokens that the engine computes; a fetched one counts as a part of one."""
        return work_tokens(self.num_tokens - self.num_cached, self.num_fetched)

    @property
    def kv_source(self) -> str:
        """Return the AddRequest.kv_source; "" if the engine computes everything."""
        return self.source.engine.kv_address if self.source is not None and self.num_fetched else ""


def work_tokens(uncached: int, fetched: int) -> int:
    """Return the computed tokens that take as long as fetching `fetched` of the `uncached` ones and computing the
    rest."""
    return uncached - fetched + int(FETCH_SHARE * fetched)
