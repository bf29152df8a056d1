"""One engine as the frontend sees it."""

from dataclasses import dataclass, field
from enum import StrEnum

from kvasir.link.codec import CODEC, Agreement
from kvasir.link.protocol import (
    FEATURE_LORA,
    FEATURE_PREFIX_CACHE,
    FEATURE_PRIORITY,
    EngineStats,
    FailedStep,
    Progress,
    Ready,
)
from kvasir.request.hashing import HASH_ALGORITHMS, BlockHashing
from kvasir_contract.phases import Phase


class EngineState(StrEnum):
    STARTING = "Starting"
    LOADING = "Loading"
    WARMING = "Warming"
    READY = "Ready"  # its capacity is known
    DRAINING = "Draining"
    LOST = "Lost"  # off the link, for good


_ANNOUNCED = {
    Phase.LOADING: EngineState.LOADING,
    Phase.WARMING: EngineState.WARMING,
    Phase.READY: EngineState.WARMING,  # until the engine sends Ready
    Phase.DRAINING: EngineState.DRAINING,
}


def state_of(phase: Phase) -> EngineState:
    return _ANNOUNCED.get(phase, EngineState.STARTING)


@dataclass(eq=False)
class RemoteEngine:
    """One incarnation until it is lost; changed by the link only."""

    incarnation: str
    rank: int
    node: str
    state: EngineState
    progress: Progress | None  # bytes, in LOADING
    last_seen: float  # on the loop's clock
    capacity: Ready | None = None
    stats: EngineStats | None = None
    step_age: float = 0.0
    shows_load: bool = False  # one frontend shows it, so that sums count it once
    crashed: FailedStep | None = None  # see Hello
    drain_seconds: float = 0.0  # see Draining
    adapters: frozenset[str] = frozenset()  # digests of those in its memory
    agreement: Agreement = field(default_factory=lambda: Agreement(CODEC))

    @property
    def usable(self) -> bool:
        return self.state is EngineState.READY

    @property
    def no_step(self) -> FailedStep:
        return FailedStep(self.incarnation)

    @property
    def block_hashing(self) -> BlockHashing | None:
        """Return how to hash for its prefix cache; None without one, or for a later version's algorithm."""
        capacity = self.capacity
        if capacity is None or FEATURE_PREFIX_CACHE not in capacity.features:
            return None
        if capacity.hash_algorithm not in HASH_ALGORITHMS:
            return None
        return BlockHashing(capacity.block_size, capacity.hash_algorithm)

    @property
    def weights(self) -> str:
        return "" if self.capacity is None else self.capacity.weights

    @property
    def numerics(self) -> str:
        return "" if self.capacity is None else self.capacity.numerics

    @property
    def kv_address(self) -> str:
        return "" if self.capacity is None else self.capacity.kv_address

    @property
    def takes_adapters(self) -> bool:
        return self.capacity is not None and FEATURE_LORA in self.capacity.features

    @property
    def serves_by_priority(self) -> bool:
        return self.capacity is not None and FEATURE_PRIORITY in self.capacity.features
