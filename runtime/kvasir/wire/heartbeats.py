"""Times of heartbeats: how often they are sent, and after how long silence or a long step means a loss."""

from typing import Final

_INTERVAL_SECONDS: Final = 1.0
_STEP_AGE_FACTOR: Final = 12


def heartbeat_interval(timeout: float) -> float:
    """Return the seconds between heartbeats: one second, but always several heartbeats within the timeout."""
    return min(_INTERVAL_SECONDS, timeout / 4)


def step_age_limit(timeout: float) -> float:
    """Return the seconds after which a running step means that any engine is stuck; 120 with the default timeout.

    An engine whose steps are short announces less (Heartbeat.step_limit). This limit is much longer than the
    heartbeat timeout: a full token budget of prefill of a large model on few CPU cores takes a minute and is not a
    failure.
    """
    return _STEP_AGE_FACTOR * timeout


class HeartbeatClock:
    """When the next heartbeat is due. Times are those of one monotonic clock."""

    def __init__(self, timeout: float, now: float) -> None:
        """`timeout`: seconds of silence after which a peer is lost."""
        self._interval = heartbeat_interval(timeout)
        self.due = now + self._interval

    def tick(self, now: float) -> float:
        """Plan the next heartbeat. Return the seconds that this process was blocked; 0.0 if it was not.

        Peers were not silent in that time: their messages have not been read yet.
        """
        late = now - self.due
        self.due = now + self._interval
        return late if late > self._interval else 0.0
