"""The clock of heartbeats, and the limits that follow from their timeout."""

from collections.abc import Iterable, Iterator
from typing import Final, Protocol, TypeVar

_INTERVAL_SECONDS: Final = 1.0
_STEP_AGE_FACTOR: Final = 12


def heartbeat_interval(timeout: float) -> float:
    return min(_INTERVAL_SECONDS, timeout / 4)


def step_age_limit(timeout: float) -> float:
    """Return the seconds after which a running step is stuck: a long prefill is not."""
    return _STEP_AGE_FACTOR * timeout


class HeartbeatClock:
    def __init__(self, timeout: float, now: float) -> None:
        self._interval = heartbeat_interval(timeout)
        self.due = now + self._interval

    def tick(self, now: float) -> float:
        """Plan the next heartbeat. Return the seconds that this process was blocked."""
        late = now - self.due
        self.due = now + self._interval
        return late if late > self._interval else 0.0


class Heard(Protocol):
    last_seen: float


_Heard = TypeVar("_Heard", bound=Heard)


def silent(peers: Iterable[_Heard], timeout: float, now: float, late: float) -> Iterator[tuple[_Heard, str]]:
    """Yield each peer that has been silent for too long, with the reason. `late`: see HeartbeatClock.tick."""
    for peer in peers:
        peer.last_seen += late
        if now - peer.last_seen > timeout:
            yield peer, f"it has been silent for {now - peer.last_seen:.1f} s"
