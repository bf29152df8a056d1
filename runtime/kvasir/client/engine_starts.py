"""How long engines take to start, from the first Hello to Ready."""

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine
from kvasir.link.protocol import Progress

DEFAULT_RETRY_AFTER: Final = 5.0
"""Seconds, before the first measured start."""
WEIGHT: Final = 0.3
JITTER: Final = 0.2
"""Share of the time by which rejected clients spread."""

_ORDER: Final = (EngineState.STARTING, EngineState.LOADING, EngineState.WARMING)


@dataclass(slots=True)
class _Start:
    began: float
    first: tuple[float, int] | None = None


class EngineStarts:
    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._clock = clock
        self._uniform = uniform
        self._starts: dict[str, _Start] = {}
        self.seconds: float | None = None

    def joined(self, engine: RemoteEngine) -> None:
        # others started before this frontend
        if engine.state in (EngineState.STARTING, EngineState.LOADING):
            self._starts[engine.incarnation] = _Start(self._clock())
            self.changed(engine)

    def changed(self, engine: RemoteEngine) -> None:
        start = self._starts.get(engine.incarnation)
        if start is None:
            return
        if engine.usable:
            del self._starts[engine.incarnation]
            seconds = self._clock() - start.began
            self.seconds = seconds if self.seconds is None else self.seconds + WEIGHT * (seconds - self.seconds)
        elif engine.progress is not None and start.first is None:
            start.first = self._clock(), engine.progress.done

    def forget(self, incarnation: str) -> None:
        self._starts.pop(incarnation, None)

    def retry_after(self) -> float:
        if self.seconds is None:
            return DEFAULT_RETRY_AFTER
        elapsed = max((self._clock() - start.began for start in self._starts.values()), default=0.0)
        return max(1.0, self.seconds - elapsed) * self._uniform(1 - JITTER, 1 + JITTER)

    def describe(self, engines: Iterable[RemoteEngine]) -> str:
        """Return the progress of the engine closest to Ready: "Loading 3.1/15.0 GB, about 40 s"."""
        starting = [engine for engine in engines if engine.state in _ORDER]
        if not starting:
            return "none is connected"
        engine = max(starting, key=lambda each: (_ORDER.index(each.state), _share(each.progress)))
        text: str = engine.state
        if engine.state is EngineState.LOADING and engine.progress is not None:
            text += f" {_sizes(engine.progress)}"
        left = self._left(engine)
        return text if left is None else f"{text}, about {left:.0f} s"

    def _left(self, engine: RemoteEngine) -> float | None:
        start, now = self._starts.get(engine.incarnation), self._clock()
        if start is None:
            return None
        if self.seconds is not None:
            left = self.seconds - (now - start.began)
            return left if left > 0 else None  # it takes longer than the others did
        if engine.progress is None or start.first is None:
            return None
        began, first = start.first
        loaded = engine.progress.done - first
        if loaded <= 0 or now <= began:
            return None
        return (engine.progress.total - engine.progress.done) * (now - began) / loaded


def _share(progress: Progress | None) -> float:
    return 0.0 if progress is None else progress.done / max(1, progress.total)


def _sizes(progress: Progress) -> str:
    unit, name = (1e9, "GB") if progress.total >= 1e9 else (1e6, "MB")
    return f"{progress.done / unit:.1f}/{progress.total / unit:.1f} {name}"
