"""The state of this frontend, written by its event loop and read by the ops port's threads."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final

from kvasir.frontend.service import Service
from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_contract.status_report import StatusReport

# config and tokenizer may be fetched first
STARTUP_LIMIT_SECONDS: Final = 900.0
# a burst of long prompts takes much less
LOOP_LIMIT_SECONDS: Final = 60.0
GATE_PATIENCE_SECONDS: Final = 2.0
LOAD_LIMIT_SECONDS: Final = 5.0  # after which the load is not reported


class FrontendStatus:
    # plain attributes, each replaced as a whole, need no lock
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._service: Service | None = None
        self._last_turn = clock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def serve(self, service: Service) -> None:
        self.beat()
        self._loop = asyncio.get_running_loop()
        self._service = service

    def beat(self) -> None:
        """Record a turn of the event loop, about every second."""
        self._last_turn = self._clock()

    @property
    def _silent(self) -> float:
        return self._clock() - self._last_turn

    def trouble(self) -> str | None:
        silent = self._silent
        if self._service is None:
            return f"{Phase.STARTING} for {silent:.0f} s" if silent > STARTUP_LIMIT_SECONDS else None
        return f"the event loop has been stuck for {silent:.0f} s" if silent > LOOP_LIMIT_SECONDS else None

    def unready_reason(self) -> str | None:
        if self._service is None:
            return "the model's config and tokenizer are being loaded"
        return self.trouble() or self._service.unready_reason()

    def report(self) -> StatusReport:
        service, message = self._service, self.unready_reason() or ""
        if service is None:
            return StatusReport(Phase.STARTING, message)
        phase = Phase.STARTING if message else Phase.READY
        return StatusReport(
            phase=Phase.DRAINING if service.stopping else phase,
            message=message,
            reason=None if service.access.keys.problem is None else Reason.INVALID_SPEC,
            live_requests=service.llm.live_requests,
            demand=service.llm.gate.report(),
            adapters=None if service.listed_adapters is None else service.listed_adapters.report(),
            load=service.metrics.load.report if self._silent <= LOAD_LIMIT_SECONDS else None,
        )

    def wait_for_demand(self, seconds: float) -> None:
        """Return when a request is live, or after this time."""
        if self._service is None:
            time.sleep(seconds)
        else:
            self._service.llm.gate.busy.wait(seconds)

    def set_gate(self, *, closed: bool) -> bool:
        """Close or open the gate. Return False if the event loop is late."""
        loop, service = self._loop, self._service
        if loop is None or service is None:
            return False
        gate, done = service.llm.gate, threading.Event()

        def act() -> None:
            if closed:
                gate.close()
            else:
                gate.open()
            done.set()

        try:
            loop.call_soon_threadsafe(act)
        except RuntimeError:  # the loop is closed
            return False
        return done.wait(GATE_PATIENCE_SECONDS)

    def metrics(self) -> bytes:
        return b"" if self._service is None else self._service.metrics.render_own()
