"""The conditions for admitting a waiting request: one small policy object per resource.

The scheduler treats all gates alike. A feature that limits admission adds a gate here, and takes and releases its
resource in `took` and `left`.
"""

from collections.abc import Sized
from enum import Enum
from typing import Final, Protocol

from kvasir.engine.kv.kv_manager import KVManager
from kvasir.engine.scheduling.engine_request import EngineRequest
from kvasir.engine.scheduling.service_order import ServiceOrder

RESERVE: Final = 4
"""Blocks of each KV group. In simulations of pools that are too small for their load (prompts and outputs of 100 to
1000 tokens, one group), a reserve of 1 causes 30 % of recomputation and one of 4 causes 6 to 9 %. A larger one
leaves rows empty."""


class Verdict(Enum):
    """The answer of a gate about the request at the head of the queue."""

    ADMIT = "admit"
    WAIT = "wait"
    """It stays at the head and no request overtakes it, so that it cannot starve. For resources that running
    requests release."""
    SKIP = "skip"
    """It leaves the queue and later requests are served, until `Scheduler.wake` returns it. For events that come
    from elsewhere and may take long."""


class AdmissionGate(Protocol):
    """A gate that holds nothing inherits all but `admits`."""

    def admits(self, request: EngineRequest) -> Verdict:
        """Return whether the request may take a row now. This takes no resource, because a later gate may refuse
        the request."""
        ...

    def took(self, request: EngineRequest) -> None:
        """Take the resource for a request that every gate has admitted."""
        return

    def left(self, request: EngineRequest) -> None:
        """Release the resource of a request that has given up its row: finished, aborted or preempted."""
        return

    def ended(self, request: EngineRequest) -> None:
        """Forget a request that has ended, with or without a row, or that was never queued."""
        return

    def check_idle(self) -> None:
        """Raise AssertionError if the gate holds a resource although no request has a row."""
        return


class PendingGate(AdmissionGate):
    """Keeps a preempted request waiting until `update` has all of its sampled tokens: a row begins with known ones.

    The steps in flight return these tokens in any case. A row that begins without them would sample them a second
    time, and the first ones would have to be recognized and dropped.
    """

    def admits(self, request: EngineRequest) -> Verdict:
        return Verdict.WAIT if request.num_pending else Verdict.ADMIT


class RowGate(AdmissionGate):
    """The worker has `max_num_seqs` rows."""

    def __init__(self, running: Sized, max_num_seqs: int) -> None:
        self._running = running
        self._max_num_seqs = max_num_seqs

    def admits(self, request: EngineRequest) -> Verdict:
        return Verdict.ADMIT if len(self._running) < self._max_num_seqs else Verdict.WAIT


class BlockGate(AdmissionGate):
    """Requires KV blocks for every token that the request has, and blocks for growth: RESERVE for each running
    request and for this one, or fewer for a request that ends before it fills them. A group with a sliding window
    needs no more blocks than the window.

    Without a reserve, a request is admitted into the last free block, preempted some steps later and admitted
    again, and its prompt is computed over and over. With a reserve for all tokens that requests may ever generate,
    rows stay empty, because few requests use their `max_tokens`. A request that would be alone needs no reserve.
    """

    def __init__(self, blocks: KVManager, running: ServiceOrder) -> None:
        self._blocks = blocks
        self._running = running
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
        """Make the sum exact, at the cost of all running requests. A refusal ends admission, so a step does this
        twice at most."""
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
