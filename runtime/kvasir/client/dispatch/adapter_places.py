"""AdapterPlaces: the engines that hold a LoRA adapter, or will because a request for it was sent there."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from kvasir.client.live_request import LiveRequest, RequestState
from kvasir.link.frontend_end.remote_engine import RemoteEngine

EXPECTED_SECONDS: Final = 10.0  # then the engine has reported it, or evicted it
MAX_EXPECTED: Final = 1024  # of an engine


@dataclass(frozen=True)
class AdaptersInUse:
    max_loras: int  # in a step of an engine; 0 if unknown
    running: frozenset[str]  # names; of requests with output
    waiting: frozenset[str]

    @classmethod
    def of(
        cls,
        requests: Iterable[LiveRequest],
        engines: Iterable[RemoteEngine],
        begun_at: Callable[[LiveRequest], float | None],
    ) -> Self:
        has_begun: dict[bool, set[str]] = {True: set(), False: set()}
        for request in requests:
            adapter = request.prompted.core.adapter
            if adapter is not None and request.state is not RequestState.FINISHED:
                has_begun[begun_at(request) is not None].add(adapter.name)
        most = max((engine.capacity.max_loras for engine in engines if engine.capacity), default=0)
        return cls(most, frozenset(has_begun[True]), frozenset(has_begun[False]))


def max_lora_rank(engines: Iterable[RemoteEngine]) -> int:
    """Return the highest rank that every engine with adapters takes; 0 if none is known."""
    ranks = (engine.capacity.max_lora_rank for engine in engines if engine.takes_adapters and engine.capacity)
    return min(filter(None, ranks), default=0)


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
