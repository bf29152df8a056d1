"""The gate that the operator closes before it removes an idle service's engines."""

import asyncio
import threading
import time
from collections.abc import Callable

from kvasir_contract.endpoints import GATE_SECONDS
from kvasir_contract.status_report import ReportedDemand


# only `report` and `busy` are thread-safe
class ZeroGate:
    def __init__(
        self, opened: Callable[[], None], *, can_hold: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`opened` is called when requests may go to engines. Without `can_hold` the gate stays open."""
        self._opened = opened
        self._can_hold = can_hold
        self._clock = clock
        self._num_live = 0
        self._last_request: float | None = None
        self._engines_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False
        self.accepts = False
        """Whether the frontend should get requests: an engine was ready, or starts on demand."""
        self.busy = threading.Event()

    def arrived(self) -> None:
        self._num_live += 1
        self._last_request = self._clock()
        if self._num_live == 1:
            self.busy.set()

    def left(self) -> None:
        self._num_live -= 1
        self._last_request = self._clock()
        if self._num_live == 0:
            self.busy.clear()

    def engines_changed(self, *, usable: bool) -> None:
        if not usable:
            self._engines_since = None
        elif self._engines_since is None:
            self._engines_since = self._clock()
            self.accepts = True

    def close(self) -> None:
        """Hold all requests. Does nothing while a request is live."""
        if self._num_live or not self._can_hold:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.closed = self.accepts = True
        # in case the operator stops before it opens the gate
        self._timer = asyncio.get_running_loop().call_later(GATE_SECONDS, self.open)

    def open(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.closed:
            self.closed = False
            self._opened()

    def report(self) -> ReportedDemand:
        """Return the demand for the operator. Thread-safe."""
        now, closed, last, since = self._clock(), self.closed, self._last_request, self._engines_since
        if self._num_live:
            last = now
        return ReportedDemand(
            gate_closed=closed,
            request_seconds=None if last is None else max(0.0, now - last),
            engine_seconds=None if since is None else max(0.0, now - since),
            can_hold=self._can_hold,
        )
