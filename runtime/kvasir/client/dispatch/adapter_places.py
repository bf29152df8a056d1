"""AdapterPlaces: the engines that hold a LoRA adapter, or will because a request for it was sent there."""

from collections.abc import Sequence
from typing import Final

from kvasir.link.frontend_end.remote_engine import RemoteEngine

EXPECTED_SECONDS: Final = 10.0  # then the engine has reported it, or evicted it
MAX_EXPECTED: Final = 1024  # of an engine


class AdapterPlaces:
    def __init__(self) -> None:
        self._expected: dict[str, dict[str, float]] = {}

    def sent(self, digest: str, incarnation: str, now: float) -> None:
        if digest:
            expected = self._expected.setdefault(incarnation, {})
            if len(expected) >= MAX_EXPECTED:
                expected.clear()
            expected[digest] = now + EXPECTED_SECONDS

    def missing(self, digest: str, engines: Sequence[RemoteEngine], now: float) -> set[str]:
        """Return the engines that would have to read the adapter."""
        if not digest:
            return set()
        return {
            engine.incarnation
            for engine in engines
            if digest not in engine.adapters and self._expected.get(engine.incarnation, {}).get(digest, now) <= now
        }

    def forget(self, incarnation: str) -> None:
        self._expected.pop(incarnation, None)
