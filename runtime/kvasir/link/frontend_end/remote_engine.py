"""An engine as the frontend knows it from the link, and who is told of its changes."""

from dataclasses import dataclass
from typing import Protocol

from kvasir.link.protocol import (
    FEATURE_PREFIX_CACHE,
    FEATURE_PRIORITY,
    OLDEST_PROTOCOL,
    PROTOCOL_VERSION,
    EngineStats,
    Hello,
    Outputs,
    Progress,
    Ready,
    Result,
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


class LinkListener(Protocol):
    """Who is told what happens on the link; called on the event loop, also from within `FrontendLink.send`."""

    def engine_changed(self, engine: RemoteEngine) -> None:
        """It is new, or its phase, progress, readiness or load changed."""

    def engine_outputs(self, engine: RemoteEngine, outputs: Outputs) -> None: ...

    def engine_answered(self, engine: RemoteEngine, result: Result) -> None:
        """What came of a Call."""

    def engine_lost(self, engine: RemoteEngine, reason: str) -> None:
        """Called once; nothing comes from this incarnation any more unless it introduces itself again."""


@dataclass(frozen=True)
class Terms:
    """What an engine must have in common with this frontend."""

    service: str
    fingerprint: str
    tokenizer_hash: str

    def refusal(self, hello: Hello) -> str | None:
        """Why the engine is not accepted: the first thing that differs, with both values."""
        if not OLDEST_PROTOCOL <= hello.protocol <= PROTOCOL_VERSION + 1:  # a newer engine knows its predecessor
            return (
                f"the engine speaks protocol {hello.protocol} (kvasir {hello.version}), the frontend "
                f"{OLDEST_PROTOCOL} to {PROTOCOL_VERSION}: run versions that are at most one protocol apart"
            )
        pairs = (
            ("service", hello.service, self.service, "its --link address leads to another service's frontend"),
            ("model fingerprint", hello.fingerprint, self.fingerprint, "give both the same model"),
            ("tokenizer hash", hello.tokenizer_hash, self.tokenizer_hash, "give both the same tokenizer files"),
        )
        for what, engines, frontends, remedy in pairs:
            if engines != frontends:
                return f"the {what} of the engine is {engines!r}, that of the frontend {frontends!r}: {remedy}"
        return None
