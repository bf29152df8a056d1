"""When heartbeats are sent, and how long silence or a step may last."""

from typing import Final

_INTERVAL_SECONDS: Final = 1.0
_STEP_AGE_FACTOR: Final = 12


def heartbeat_interval(timeout: float) -> float:
    # several heartbeats within the timeout
    return min(_INTERVAL_SECONDS, timeout / 4)


def step_age_limit(timeout: float) -> float:
    """Return the seconds after which a running step means that the engine is stuck: a long prefill is not a
    failure.
    """
    return _STEP_AGE_FACTOR * timeout


class HeartbeatClock:
    """Plans heartbeats on one monotonic clock."""

    def __init__(self, timeout: float, now: float) -> None:
        self._interval = heartbeat_interval(timeout)
        self.due = now + self._interval

    def tick(self, now: float) -> float:
        """Plan the next heartbeat. Return the seconds that this process was blocked and read no message."""
        late = now - self.due
        self.due = now + self._interval
        return late if late > self._interval else 0.0
