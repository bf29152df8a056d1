"""Drain: when a draining engine may end, and how long its loop may sleep until then."""

import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from kvasir.engine.waves import Flags

DRAIN_SETTLE_SECONDS: Final = 5.0  # frontends without Heartbeat.saw_draining never answer
# since the last abort or transfer: the next engine of a request fetches its KV blocks
LINGER_SECONDS: Final = 2.0


class DrainState(Enum):
    """The first state that applies; after the drain timeout, one of the last two."""

    SERVING = auto()
    FINISHING = auto()  # until the timeout: a request is live or in the inbox
    SETTLING = auto()  # until the settle limit: a frontend may have sent a request before it knew
    LINGERING = auto()  # until the linger limit or the timeout: another engine may fetch KV blocks
    OVERDUE = auto()  # requests must be failed
    OVER = auto()  # the engine may end


class Drain:
    """Belongs to the loop's thread, except `asked`."""

    def __init__(
        self,
        timeout: float,
        settle: float,
        is_busy: Callable[[], bool],
        is_handing_over: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.timeout = timeout
        self.asked = False  # by a signal handler; the loop then calls `begin`
        self.settled = False  # all frontends know
        self.group_overdue = False  # in another engine of the group
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
