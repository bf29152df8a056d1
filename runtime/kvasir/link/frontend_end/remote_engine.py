"""One engine as the frontend sees it."""

from dataclasses import dataclass

from kvasir.link.protocol import (
    FEATURE_PREFIX_CACHE,
    FEATURE_PRIORITY,
    EngineStats,
    Progress,
    Ready,
)
from kvasir_contract.phases import Phase


@dataclass(eq=False)
class RemoteEngine:
    """One incarnation, from its Hello until it is lost; made and changed by the link only."""

    incarnation: str
    rank: int
    node: str
    phase: Phase
    progress: Progress | None
    last_seen: float
    """Of the event loop's clock."""
    ready: Ready | None = None
    stats: EngineStats | None = None
    step_age: float = 0.0
    """Seconds that its current step has taken so far, as last told; 0 when idle."""
    draining: bool = False
    lost: bool = False

    @property
    def usable(self) -> bool:
        """It takes requests."""
        return self.ready is not None and not self.draining and not self.lost

    @property
    def cache_block_size(self) -> int | None:
        """Tokens per block of its prefix cache; None where it keeps none."""
        has_cache = self.ready is not None and FEATURE_PREFIX_CACHE in self.ready.features
        return self.ready.block_size if self.ready is not None and has_cache else None

    @property
    def serves_by_priority(self) -> bool:
        return self.ready is not None and FEATURE_PRIORITY in self.ready.features
