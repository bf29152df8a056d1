"""How this frontend is: written by its event loop, read by the ops port's threads.

Only plain attributes are shared and each is replaced whole, so no lock is needed.
"""

import time
from collections.abc import Callable
from typing import Final

from kvasir.frontend.service import Service
from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_contract.status_report import StatusReport

STARTUP_LIMIT_SECONDS: Final = 900.0
"""A start that takes longer is stuck: config and tokenizer may have to be fetched from a hub first."""
LOOP_LIMIT_SECONDS: Final = 60.0
"""An event loop that has not turned for this long is stuck. Far above what a burst of long prompts takes."""


class FrontendStatus:
    """From the start of the process to its end; `service` is set once it has been built."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._service: Service | None = None
        self._last_turn = clock()

    def serve(self, service: Service) -> None:
        """Requests are answered from now on."""
        self.beat()
        self._service = service

    def beat(self) -> None:
        """Note that the event loop turns; called every second or so."""
        self._last_turn = self._clock()

    def trouble(self) -> str | None:
        """Return why this process should be restarted."""
        silent = self._clock() - self._last_turn
        if self._service is None:
            return f"{Phase.STARTING} for {silent:.0f} s" if silent > STARTUP_LIMIT_SECONDS else None
        return f"the event loop has been stuck for {silent:.0f} s" if silent > LOOP_LIMIT_SECONDS else None

    def unready_reason(self) -> str | None:
        """Return why new requests should go elsewhere."""
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
        )

    def metrics(self) -> bytes:
        return b"" if self._service is None else self._service.metrics.render_own()
