"""Which KV blocks are free: the ids of the paged cache, handed out and taken back by the scheduler.

Block 0 is the *null block*: it exists in the KV tensors, is never handed out, and stands in block tables where a
row has no block. Usable ids are 1..num_blocks.
"""

from collections.abc import Sequence
from typing import Final

NULL_BLOCK: Final = 0
_IN_USE: Final = -1


class FreeQueue:
    """Free blocks in LRU order: a doubly linked list threaded through two arrays indexed by block id.

    The null block, never free itself, closes the ring: after it comes the block that was freed longest ago, before
    it the one freed last. Not a deque, because a prefix cache takes blocks out of the middle when it hits them, and
    that has to be O(1) without an allocation.
    """

    def __init__(self, num_blocks: int) -> None:
        self._next: list[int] = [*range(1, num_blocks + 1), NULL_BLOCK]
        self._previous: list[int] = [num_blocks, *range(num_blocks)]
        self._length = num_blocks

    def __len__(self) -> int:
        return self._length

    def __contains__(self, block_id: int) -> bool:
        return block_id != NULL_BLOCK and self._next[block_id] != _IN_USE

    def append(self, block_id: int) -> None:
        """The block becomes the last to be reused."""
        last = self._previous[NULL_BLOCK]
        self._next[last] = block_id
        self._previous[block_id] = last
        self._next[block_id] = NULL_BLOCK
        self._previous[NULL_BLOCK] = block_id
        self._length += 1

    def remove(self, block_id: int) -> None:
        """Take this block, wherever it stands."""
        before, after = self._previous[block_id], self._next[block_id]
        self._next[before] = after
        self._previous[after] = before
        self._next[block_id] = _IN_USE
        self._length -= 1

    def pop(self) -> int:
        """Take the block that has been free for longest."""
        block_id = self._next[NULL_BLOCK]
        self.remove(block_id)
        return block_id


class BlockPool:
    """Hands out KV blocks. Ask `can_allocate` first: `allocate` does not wait and does not evict requests."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block besides the null block, not {num_blocks}")
        self.num_blocks = num_blocks
        self._free = FreeQueue(num_blocks)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks in use, 0 to 1."""
        return self.num_used / self.num_blocks

    def can_allocate(self, count: int) -> bool:
        return count <= len(self._free)

    def allocate(self, count: int) -> list[int]:
        if not self.can_allocate(count):
            raise RuntimeError(f"{count} KV blocks were taken where {len(self._free)} are free")
        return [self._free.pop() for _ in range(count)]

    def free(self, block_ids: Sequence[int]) -> None:
        """Take back a request's blocks, given in the order of its block table.

        They are queued in reverse, so that the end of a chain is reused before its beginning: a cached prefix stays
        useful for longer than what followed it.
        """
        for block_id in reversed(block_ids):
            if not 1 <= block_id <= self.num_blocks:
                raise RuntimeError(f"KV block {block_id} is freed and is not one of 1..{self.num_blocks}")
            if block_id in self._free:
                raise RuntimeError(f"KV block {block_id} is freed twice")
            self._free.append(block_id)

    def check_all_free(self) -> None:
        assert self.num_used == 0, f"{self.num_used} of {self.num_blocks} KV blocks belong to no request"
