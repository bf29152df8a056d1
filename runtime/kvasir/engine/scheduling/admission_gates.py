"""Admission gates: whether a waiting request may take a row, one policy object per resource.

docs/design/adding-a-gate.md has an example.
"""

from collections.abc import Sized
from enum import Enum
from typing import Final, Protocol

from kvasir.engine.kv.kv_manager import KVManager
from kvasir.engine.scheduling.engine_request import EngineRequest
from kvasir.engine.scheduling.service_order import ServiceOrder

RESERVE: Final = 4
"""Blocks of each KV group. In simulations a reserve of 1 recomputes 30 % of the tokens and one of 4 recomputes 6 to
9 %; a larger one leaves rows empty."""


class Verdict(Enum):
    ADMIT = "admit"
    WAIT = "wait"  # stays at the head, and no request overtakes it: for a resource that running requests release
    SKIP = "skip"  # leaves the queue until `Scheduler.wake`: for an event from elsewhere, which may take long


class AdmissionGate(Protocol):
    def admits(self, request: EngineRequest) -> Verdict:
        """Return whether the request may take a row. Takes nothing: a later gate may refuse it."""
        ...

    def took(self, request: EngineRequest) -> None:
        """Take the resource when every gate has admitted the request."""
        return

    def left(self, request: EngineRequest) -> None:
        """Release it when the request loses its row: finished, aborted or preempted."""
        return

    def ended(self, request: EngineRequest) -> None:
        """Forget a request that has ended, with or without a row."""
        return

    def check_idle(self) -> None:
        return


class PendingGate(AdmissionGate):
    def admits(self, request: EngineRequest) -> Verdict:
        # Otherwise the new row would sample these tokens again, and the first ones would have to be dropped.
        return Verdict.WAIT if request.num_pending else Verdict.ADMIT


class RowGate(AdmissionGate):
    def __init__(self, running: Sized, max_num_seqs: int) -> None:
        self._running = running
        self._max_num_seqs = max_num_seqs

    def admits(self, request: EngineRequest) -> Verdict:
        return Verdict.ADMIT if len(self._running) < self._max_num_seqs else Verdict.WAIT


class BlockGate(AdmissionGate):
    """Requires blocks for the request, and a reserve of up to RESERVE for each running one.

    Without a reserve, a request takes the last block, is preempted some steps later, and computes its prompt again.
    With a reserve for `max_tokens`, rows stay empty, because few requests generate that much.
    """

    def __init__(self, blocks: KVManager, running: ServiceOrder) -> None:
        self._blocks = blocks
        self._running = running
        # Growth falls while a request runs: these are upper bounds until they are counted again.
        self._growths: dict[str, int] = {}
        self._sum = 0
        # Growth falls while a request runs, so these are upper bounds until they are counted again.

    def admits(self, request: EngineRequest) -> Verdict:
        return Verdict.ADMIT if self._has_room_for(request) else Verdict.WAIT

    def took(self, request: EngineRequest) -> None:
        self._add(request)

    def left(self, request: EngineRequest) -> None:
        self._sum -= self._growths.pop(request.request_id)

    def check_idle(self) -> None:
        assert not self._growths, f"blocks are reserved for {list(self._growths)}"
        assert not self._sum, f"{self._sum} blocks are reserved for no request"

    def _has_room_for(self, request: EngineRequest) -> bool:
        pool = self._blocks.pool
        cost = self._blocks.cost_of(request)
        if not self._running or not pool.can_allocate(cost):
            return pool.can_allocate(cost)
        wanted = cost + self._growth(request)
        if pool.can_allocate(wanted + self._sum):
            return True
        self._count_again()
        return pool.can_allocate(wanted + self._sum)

    def _count_again(self) -> None:
        # Costs time for each running request. A refusal ends admission, so a step does this twice at most.
        self._growths.clear()
        self._sum = 0
        for running in self._running:
            self._add(running)

    def _add(self, request: EngineRequest) -> None:
        self._growths[request.request_id] = growth = self._growth(request)
        self._sum += growth

    def _growth(self, request: EngineRequest) -> int:
        left = request.params.max_tokens - request.num_output_tokens - 1  # the last token needs no KV
        more = min(-(-left // self._blocks.block_size), RESERVE)
        return more if self._blocks.is_plain else self._blocks.growth(request, more)
