"""Drain: when a draining engine may end, and for how long its loop may sleep until then."""

import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from kvasir.engine.waves import Flags

DRAIN_SETTLE_SECONDS: Final = 5.0
"""The drain goes on after it: frontends of a release without Heartbeat.saw_draining never answer."""
# since the last abort or transfer: the engine that continues a request fetches its KV blocks
LINGER_SECONDS: Final = 2.0


class DrainState(Enum):
    """The first state that applies is the state; after the drain timeout, only the last two can apply."""

    SERVING = auto()  # It was not asked to drain.
    FINISHING = auto()  # A request is live or waits in the inbox: until the drain timeout.
    SETTLING = auto()  # A frontend may have sent a request before it knew: until the settle limit.
    LINGERING = auto()  # Another engine fetches KV blocks, or may begin to: until the linger limit or the timeout.
    OVERDUE = auto()  # The drain timeout is over, and requests must be failed.
    OVER = auto()  # Nothing is left: the engine may end.


class Drain:
    """The drain of one engine. Belongs to the loop's thread, except `asked`."""

    def __init__(
        self,
        timeout: float,
        settle: float,
        is_busy: Callable[[], bool],
        is_handing_over: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_busy`: a request is live or waits in the inbox. `is_handing_over`: another engine fetches blocks."""
        self.timeout = timeout
        self.asked = False  # set by a signal handler; the loop then calls `begin`
        self.settled = False  # all frontends know, and no earlier request is on its way
        self.group_overdue = False  # the timeout is over in another engine of the group
        self._settle = min(settle, timeout)
        self._is_busy = is_busy
        self._is_handing_over = is_handing_over
        self._clock = clock
        self._began: float | None = None
        self._linger_end = 0.0

    def begin(self) -> None:
        self._began = self._clock()

    @property
    def has_begun(self) -> bool:
        return self._began is not None

    def linger(self) -> None:
        if self._began is not None:
            self._linger_end = self._clock() + LINGER_SECONDS

    @property
    def state(self) -> DrainState:
        return self._state_and_end()[0]

    @property
    def seconds_left(self) -> float | None:
        end = self._state_and_end()[1]
        return None if end is None else max(0.0, end - self._clock())

    def flags(self, work: bool) -> Flags:
        """Return the state of this engine for its group. `work`: the next step does something."""
        if self._began is None:
            return Flags(work)
        stays = self.state is not DrainState.OVER
        return Flags(work, drains=True, stays=stays, overdue=self._is_overdue(self._began))

    def _state_and_end(self) -> tuple[DrainState, float | None]:
        if (began := self._began) is None:
            return DrainState.SERVING, None
        end, now = began + self.timeout, self._clock()
        if self._is_overdue(began):
            return DrainState.OVERDUE if self._is_busy() else DrainState.OVER, now
        if self._is_busy():
            return DrainState.FINISHING, end
        if not self.settled and now < began + self._settle:
            return DrainState.SETTLING, began + self._settle
        if self._is_handing_over():
            return DrainState.LINGERING, end
        if now < self._linger_end:
            return DrainState.LINGERING, min(end, self._linger_end)
        return DrainState.OVER, now

    def _is_overdue(self, began: float) -> bool:
        return self.group_overdue or self._clock() - began >= self.timeout
