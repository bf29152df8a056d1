"""One engine as the frontend sees it."""

from dataclasses import dataclass, field
from enum import StrEnum

from kvasir.link.codec import CODEC, Agreement
from kvasir.link.protocol import (
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
    """How far an engine is, as its frontend sees it. An engine takes requests only while it is READY."""

    STARTING = "Starting"
    LOADING = "Loading"
    WARMING = "Warming"
    READY = "Ready"
    """The engine has sent Ready, so its capacity is known."""
    DRAINING = "Draining"
    LOST = "Lost"
    """The engine is off the link. This state is the last one of a RemoteEngine."""


_ANNOUNCED = {
    Phase.LOADING: EngineState.LOADING,
    Phase.WARMING: EngineState.WARMING,
    Phase.READY: EngineState.WARMING,  # until the engine sends Ready
    Phase.DRAINING: EngineState.DRAINING,
}


def state_of(phase: Phase) -> EngineState:
    """Return the state of an engine that sends a Hello in this phase."""
    return _ANNOUNCED.get(phase, EngineState.STARTING)


@dataclass(eq=False)
class RemoteEngine:
    """One incarnation, from its Hello until it is lost; made and changed by the link only."""

    incarnation: str
    rank: int
    node: str
    state: EngineState
    progress: Progress | None
    """Bytes loaded so far, in LOADING."""
    last_seen: float
    """Of the event loop's clock."""
    capacity: Ready | None = None
    """The engine's limits and features; None before its Ready."""
    stats: EngineStats | None = None
    step_age: float = 0.0
    """Seconds that its current step had taken at its last heartbeat; 0 when idle."""
    shows_load: bool = False
    """Whether the metrics of this frontend include the engine's load. One frontend shows it, so that sums count
    it once. False until the first heartbeat."""
    crashed: FailedStep | None = None
    """See protocol.Hello."""
    drain_seconds: float = 0.0
    """See protocol.Draining."""
    agreement: Agreement = field(default_factory=lambda: Agreement(CODEC))

    @property
    def usable(self) -> bool:
        """The engine takes requests."""
        return self.state is EngineState.READY

    @property
    def no_step(self) -> FailedStep:
        """The step of an engine that has not failed in one."""
        return FailedStep(self.incarnation)

    @property
    def block_hashing(self) -> BlockHashing | None:
        """How to hash prompts for its prefix cache; None without one, and for an algorithm of a later version."""
        capacity = self.capacity
        if capacity is None or FEATURE_PREFIX_CACHE not in capacity.features:
            return None
        if capacity.hash_algorithm not in HASH_ALGORITHMS:
            return None
        return BlockHashing(capacity.block_size, capacity.hash_algorithm)

    @property
    def weights(self) -> str:
        """Identity of its weights; "" if it is not known."""
        return "" if self.capacity is None else self.capacity.weights

    @property
    def numerics(self) -> str:
        """The class of its numerics; "" if it is not known."""
        return "" if self.capacity is None else self.capacity.numerics

    @property
    def kv_address(self) -> str:
        """Where engines of the same numerics class fetch its KV blocks; "" if they cannot."""
        return "" if self.capacity is None else self.capacity.kv_address

    @property
    def serves_by_priority(self) -> bool:
        return self.capacity is not None and FEATURE_PRIORITY in self.capacity.features
