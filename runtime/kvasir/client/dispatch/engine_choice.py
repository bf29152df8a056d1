"""The router's choice of an engine for a request, with its estimates."""

from dataclasses import dataclass

from kvasir.client.moves.kv_source import FETCH_SHARE, KvSource
from kvasir.link.frontend_end.remote_engine import RemoteEngine


@dataclass(slots=True)
class EngineChoice:
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
        """Return the tokens to compute; a fetched one counts as FETCH_SHARE of one."""
        return work_tokens(self.num_tokens - self.num_cached, self.num_fetched)

    @property
    def kv_source(self) -> str:
        """Return the AddRequest.kv_source."""
        return self.source.engine.kv_address if self.source is not None and self.num_fetched else ""


def work_tokens(uncached: int, fetched: int) -> int:
    return uncached - fetched + int(FETCH_SHARE * fetched)
