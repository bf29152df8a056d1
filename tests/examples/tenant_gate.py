"""An admission gate: a tenant has at most so many rows, and requests of other tenants are served meanwhile.

The example of docs/design/adding-a-gate.md.
"""

from collections import Counter
from collections.abc import Callable

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.scheduling.admission_gates import AdmissionGate, Verdict
from kvasir.request.hashing import ChainRoot


class TenantGate(AdmissionGate):
    def __init__(self, limit: int) -> None:
        self.wake: Callable[[str], None] = lambda request_id: None
        """Set to `Scheduler.wake`."""
        self._limit = limit
        self._running: Counter[ChainRoot] = Counter()
        self._skipped: dict[ChainRoot, list[str]] = {}

    def admits(self, request: EngineRequest) -> Verdict:
        tenant = request.chain_root  # the same for requests with the same cache_salt
        if self._running[tenant] < self._limit:
            return Verdict.ADMIT
        self._skipped.setdefault(tenant, []).append(request.request_id)
        return Verdict.SKIP

    def took(self, request: EngineRequest) -> None:
        self._running[request.chain_root] += 1

    def left(self, request: EngineRequest) -> None:
        tenant = request.chain_root
        self._running[tenant] -= 1
        for request_id in self._skipped.pop(tenant, []):
            self.wake(request_id)  # this is the loop's thread; others call Inbox.wake_request

    def check_idle(self) -> None:
        assert not self._running.total()
