"""What a waiting request has to pass before it takes a row: one small policy object per resource.

The scheduler asks every gate and knows none of them; a later feature that limits admission adds a gate here.
"""

from collections.abc import Sized
from typing import Protocol

from kvasir.engine.block_pool import BlockPool
from kvasir.engine.request import EngineRequest


class Gate(Protocol):
    def admits(self, request: EngineRequest) -> bool:
        """Whether the request may take a row now. Changes nothing: a later gate may still say no."""
        ...


class RowGate:
    """The worker has `max_num_seqs` rows."""

    def __init__(self, running: Sized, max_num_seqs: int) -> None:
        self._running = running
        self._max_num_seqs = max_num_seqs

    def admits(self, request: EngineRequest) -> bool:
        return len(self._running) < self._max_num_seqs


class BlockGate:
    """Every token that the request already has must find a KV block, with one block to spare for each running
    request and for itself.

    The spare blocks are what they grow into next. Without them a request would be admitted into the last free
    block, preempted at the next step, admitted again, and its prompt computed over and over. A request that would
    be alone needs none: nobody else takes the blocks it grows into.
    """

    def __init__(self, pool: BlockPool, running: Sized, block_size: int) -> None:
        self._pool = pool
        self._running = running
        self._block_size = block_size

    def admits(self, request: EngineRequest) -> bool:
        needed = -(-request.num_tokens // self._block_size)
        others = len(self._running)
        return self._pool.can_allocate(needed + others + 1 if others else needed)
