"""The gate between the frontend and the engines, and the facts about demand that the operator reads.

Before the operator removes the engines of an idle service, it closes the gates of all frontends. Behind a closed
gate all requests are held, as if there were no engines. A gate closes only while no request is live, and opens by
itself after GATE_SECONDS, so that an operator that stops in between delays requests by this time at most.

The event loop calls the methods. Other threads only read attributes, and wait for `busy`.
"""

import asyncio
import threading
import time
from collections.abc import Callable

from kvasir_contract.endpoints import GATE_SECONDS
from kvasir_contract.status_report import ReportedDemand


class ZeroGate:
    """Holds requests back while it is closed; counts live requests and notes when the last one came."""

    def __init__(
        self, opened: Callable[[], None], *, can_hold: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`opened` is called when requests may go to engines again. `can_hold`: without it, the gate stays open."""
        self._opened = opened
        self._can_hold = can_hold
        self._clock = clock
        self._num_live = 0
        self._last_request: float | None = None
        self._engines_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False
        self.accepts = False
        """Whether the frontend should get requests: since its start an engine was ready, or the gate was closed,
        which means that the operator starts engines when requests come."""
        self.busy = threading.Event()
        """Set while a request is live."""

    def arrived(self) -> None:
        """Note that a request has come."""
        self._num_live += 1
        self._last_request = self._clock()
        if self._num_live == 1:
            self.busy.set()

    def left(self) -> None:
        """Note that a request has ended, or that its client has left."""
        self._num_live -= 1
        self._last_request = self._clock()
        if self._num_live == 0:
            self.busy.clear()

    def engines_changed(self, *, usable: bool) -> None:
        """Note whether an engine takes requests now."""
        if not usable:
            self._engines_since = None
        elif self._engines_since is None:
            self._engines_since = self._clock()
            self.accepts = True

    def close(self) -> None:
        """Hold all requests from now on, for GATE_SECONDS.

        While a request is live, nothing changes: an open gate stays open, and a closed one opens at its time.
        """
        if self._num_live or not self._can_hold:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.closed = self.accepts = True
        self._timer = asyncio.get_running_loop().call_later(GATE_SECONDS, self.open)

    def open(self) -> None:
        """Let requests go to engines."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.closed:
            self.closed = False
            self._opened()

    def report(self) -> ReportedDemand:
        """Return the facts for the operator. May be called by any thread."""
        now, closed, last, since = self._clock(), self.closed, self._last_request, self._engines_since
        if self._num_live:
            last = now
        return ReportedDemand(
            gate_closed=closed,
            request_seconds=None if last is None else max(0.0, now - last),
            engine_seconds=None if since is None else max(0.0, now - since),
            can_hold=self._can_hold,
        )
