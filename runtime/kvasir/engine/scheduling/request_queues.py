"""RequestQueues: where each live request is: waiting, blocked or running.

    arrive → waiting ──────── take_row ────────► running → finish
               │  ▲                                │ │
          skip │  │ wake                           │ └──► preempt → waiting
               ▼  │                                │
             blocked                               └ every way out of a row calls `left` of each gate

A request in any of the three may be finished (aborted).
"""

from collections.abc import Sequence

from kvasir.engine.engine_request import EngineRequest, RequestStatus
from kvasir.engine.kv.kv_manager import KVManager
from kvasir.engine.scheduling.admission_gates import AdmissionGate, BlockGate, PendingGate, RowGate, Verdict
from kvasir.engine.scheduling.service_order import ServiceOrder
from kvasir.engine.scheduling.token_budget import TokenBudget


class RequestQueues:
    def __init__(
        self,
        blocks: KVManager,
        max_num_seqs: int,
        gates: Sequence[AdmissionGate],
        budget: TokenBudget | None,
    ) -> None:
        self.requests: dict[str, EngineRequest] = {}
        self.waiting = ServiceOrder()
        self.suspects = ServiceOrder()  # to be computed alone (lone_steps.py)
        # skipped by a gate until `wake`
        self.blocked: dict[str, EngineRequest] = {}
        self.running = ServiceOrder()
        self.freed_rows: list[str] = []  # for the worker to free
        self._blocks = blocks
        self._budget = budget
        # Rows first: it is the cheapest check. Blocks last: a skipped request must not hold up smaller ones.
        self.room = BlockGate(blocks, self.running)
        self._gates = (PendingGate(), RowGate(self.running, max_num_seqs), *gates, self.room)

    def arrive(self, request: EngineRequest) -> None:
        self.requests[request.request_id] = request
        self._queue_of(request).add(request)

    def next_admissible(self, order: ServiceOrder) -> EngineRequest | None:
        """Return the first request if every gate admits it. Skipped ones become blocked."""
        while order:
            request = order[0]
            verdict = self._verdict(request)
            if verdict is not Verdict.SKIP:
                return request if verdict is Verdict.ADMIT else None
            order.remove(request)
            self.blocked[request.request_id] = request
        return None

    def wake(self, request_id: str) -> None:
        request = self.blocked.pop(request_id, None)
        if request is not None:
            self._queue_of(request).add(request)

    def take_row(self, request: EngineRequest) -> None:
        self._queue_of(request).remove(request)
        self.running.add(request)
        request.status = RequestStatus.RUNNING
        self.release_reserved(request)
        for gate in self._gates:
            gate.took(request)

    def preempt(self, request: EngineRequest) -> None:
        self.running.remove(request)
        self._give_up_row(request)
        request.status = RequestStatus.PREEMPTED
        self._queue_of(request).add(request)

    def finish(self, request: EngineRequest, status: RequestStatus) -> None:
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self._give_up_row(request)
        elif self.blocked.pop(request.request_id, None) is None:
            self._queue_of(request).remove(request)
        request.status = status
        self.drop(request)
        del self.requests[request.request_id]

    def drop(self, request: EngineRequest) -> None:
        self.release_reserved(request)
        for gate in self._gates:
            gate.ended(request)

    def release_reserved(self, request: EngineRequest) -> None:
        if self._budget is not None and request.num_reserved_tokens is not None:
            self._budget.release(request.num_reserved_tokens)
        request.num_reserved_tokens = None

    def check_idle(self) -> None:
        queued = len(self.waiting) + len(self.suspects) + len(self.blocked) + len(self.running)
        assert queued == len(self.requests), f"{len(self.requests)} requests are live and {queued} are in a queue"
        assert not self.freed_rows, f"{len(self.freed_rows)} rows were never freed in the worker"
        if not self.running:
            self._blocks.check_idle()
            for gate in self._gates:
                gate.check_idle()

    def _verdict(self, request: EngineRequest) -> Verdict:
        for gate in self._gates:
            verdict = gate.admits(request)
            if verdict is not Verdict.ADMIT:
                return verdict
        return Verdict.ADMIT

    def _queue_of(self, request: EngineRequest) -> ServiceOrder:
        # Constant while it waits: it gets no tokens.
        return self.suspects if request.is_suspect else self.waiting

    def _give_up_row(self, request: EngineRequest) -> None:
        self._blocks.release(request)
        self.freed_rows.append(request.request_id)
        for gate in self._gates:
            gate.left(request)
