"""The engine as its frontends see it: identity, phase, capacity and load."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kvasir.link.protocol import (
    AdaptersHeld,
    Draining,
    EngineStats,
    FailedStep,
    FromEngine,
    Heartbeat,
    Hello,
    Progress,
    Ready,
)
from kvasir.wire.heartbeats import step_age_limit
from kvasir_contract.phases import Phase


@dataclass(frozen=True)
class EngineIdentity:
    incarnation: str
    rank: int
    node: str
    service: str
    version: str
    fingerprint: str
    tokenizer_hash: str


@dataclass(frozen=True)
class _Load:
    stats: EngineStats
    busy_since: float | None  # the step counter's last move, while there is work


class AnnouncedEngine:
    """Belongs to the link's thread; any thread may call `set_load`."""

    def __init__(
        self,
        identity: EngineIdentity,
        protocol: int,
        timeout: float,
        step_limit: Callable[[], float] | None = None,
        *,
        crashed: FailedStep | None = None,
        running: Callable[[], FailedStep | None] = lambda: None,
    ) -> None:
        """`timeout`: see EngineLink. `step_limit`: seconds after which a step is stuck. `running`: requests of the
        steps in flight. `crashed`: see Hello.
        """
        self.identity = identity
        self.phase = Phase.STARTING
        self._protocol = protocol
        self._step_limit = step_limit or partial(step_age_limit, timeout)
        self._crashed = crashed
        self._running = running
        self._progress: Progress | None = None
        self._progress_sent: Progress | None = None
        self._ready: Ready | None = None
        self.adapters = AdaptersHeld()
        self._load: _Load | None = None
        self._drain_deadline = 0.0  # then it gives back its requests

    @property
    def is_ready(self) -> bool:
        return self._ready is not None

    @property
    def has_news(self) -> bool:
        return self._progress != self._progress_sent and self._ready is None

    def set_phase(self, phase: Phase, progress: Progress | None) -> bool:
        """Return whether frontends must get a Hello now."""
        changed = phase is not self.phase
        self.phase, self._progress = phase, progress
        return changed and self._ready is None

    def set_ready(self, ready: Ready) -> None:
        self.phase, self._progress, self._ready = Phase.READY, None, ready

    def set_draining(self, seconds: float) -> Draining:
        self.phase = Phase.DRAINING
        self._drain_deadline = time.monotonic() + seconds
        return Draining(seconds)

    def set_load(self, stats: EngineStats, busy: bool) -> None:
        since = None
        if busy:
            last = self._load
            if last is not None and last.stats.step == stats.step:
                since = last.busy_since
            if since is None:
                since = time.monotonic()
        self._load = _Load(stats, since)

    def greeting(self) -> Hello | None:
        """Return the Hello; None while the engine is stuck in a step."""
        if self._step_age() > self._step_limit():
            return None
        self._progress_sent = self._progress
        identity = self.identity
        return Hello(
            protocol=self._protocol,
            service=identity.service,
            incarnation=identity.incarnation,
            rank=identity.rank,
            node=identity.node,
            version=identity.version,
            fingerprint=identity.fingerprint,
            tokenizer_hash=identity.tokenizer_hash,
            phase_name=self.phase,
            progress=self._progress,
            crashed=self._crashed,
        )

    def introduction(self) -> list[FromEngine]:
        if self.phase is Phase.DRAINING:
            return [Draining(max(0.0, self._drain_deadline - time.monotonic()))]
        if self._ready is None:
            return []
        return [self._ready, self.adapters] if self.adapters.adapters else [self._ready]

    def heartbeat(self, shows_load: bool = True) -> Heartbeat:
        load, age, limit = self._load, self._step_age(), self._step_limit()
        return Heartbeat(
            load.stats if load is not None else None,
            age,
            step_limit=limit,
            shows_load=shows_load,
            stuck=self._running() if age > limit else None,
        )

    def _step_age(self) -> float:
        load = self._load
        return 0.0 if load is None or load.busy_since is None else time.monotonic() - load.busy_since
