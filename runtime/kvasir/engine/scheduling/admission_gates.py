"""Admission gates decide whether a waiting request may take a row (docs/design/adding-a-gate.md)."""

from collections.abc import Sized
from enum import Enum
from typing import Final, Protocol

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.kv.kv_manager import KVManager
from kvasir.engine.scheduling.service_order import ServiceOrder

# Blocks per KV group. In simulations 1 recomputes 30 % of the tokens and 4 only 6 to 9 %; more leaves rows empty.
RESERVE: Final = 4


class Verdict(Enum):
    ADMIT = "admit"
    WAIT = "wait"  # at the head: no request overtakes it
    SKIP = "skip"  # leaves the queue until `Scheduler.wake`


class AdmissionGate(Protocol):
    def admits(self, request: EngineRequest) -> Verdict:
        """Return the verdict and take nothing: a later gate may refuse."""
        ...

    def took(self, request: EngineRequest) -> None:
        # every gate has admitted it
        return

    def left(self, request: EngineRequest) -> None:
        # finished, aborted or preempted
        return

    def ended(self, request: EngineRequest) -> None:
        # with or without a row
        return

    def check_idle(self) -> None:
        return


class PendingGate(AdmissionGate):
    def admits(self, request: EngineRequest) -> Verdict:
        # A new row would sample the pending tokens again.
        return Verdict.WAIT if request.num_pending else Verdict.ADMIT


class RowGate(AdmissionGate):
    def __init__(self, running: Sized, max_num_seqs: int) -> None:
        self._running = running
        self._max_num_seqs = max_num_seqs

    def admits(self, request: EngineRequest) -> Verdict:
        return Verdict.ADMIT if len(self._running) < self._max_num_seqs else Verdict.WAIT


class BlockGate(AdmissionGate):
    """Requires blocks for the request, and a reserve of up to RESERVE for each running one."""

    # Without a reserve, requests are preempted soon after admission. Few generate `max_tokens`.

    def __init__(self, blocks: KVManager, running: ServiceOrder) -> None:
        self._blocks = blocks
        self._running = running
        # upper bounds until they are counted again: growth falls while a request runs
        self._growths: dict[str, int] = {}
        self._sum = 0

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
        # At most twice a step, because a refusal ends admission.
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
