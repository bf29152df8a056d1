"""BlockPool: allocates, shares and frees the ids of KV blocks (1 to num_blocks).

A free block may still hold a cached prefix, until `allocate` returns it.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from kvasir.engine.engine_request import NULL_BLOCK
from kvasir.engine.kv.prefix_cache import PrefixCache

_IN_USE: Final = -1


class FreeQueue:
    """Free blocks in LRU order: a doubly linked list in two arrays."""

    # Not a deque: a cache hit removes blocks from the middle in O(1).

    def __init__(self, num_blocks: int) -> None:
        # The null block closes the ring; the block after it is reused first.
        self._next: list[int] = [*range(1, num_blocks + 1), NULL_BLOCK]
        self._previous: list[int] = [num_blocks, *range(num_blocks)]
        self._length = num_blocks

    def __len__(self) -> int:
        return self._length

    def __contains__(self, block_id: int) -> bool:
        return block_id != NULL_BLOCK and self._next[block_id] != _IN_USE

    def append(self, block_id: int) -> None:
        self._insert(self._previous[NULL_BLOCK], block_id, NULL_BLOCK)

    def prepend(self, block_id: int) -> None:
        self._insert(NULL_BLOCK, block_id, self._next[NULL_BLOCK])

    def remove(self, block_id: int) -> None:
        before, after = self._previous[block_id], self._next[block_id]
        self._next[before] = after
        self._previous[after] = before
        self._next[block_id] = _IN_USE
        self._length -= 1

    def pop(self) -> int:
        block_id = self._next[NULL_BLOCK]
        self.remove(block_id)
        return block_id

    def _insert(self, before: int, block_id: int, after: int) -> None:
        self._next[before] = self._previous[after] = block_id
        self._previous[block_id] = before
        self._next[block_id] = after
        self._length += 1


class BlockPool:
    def __init__(self, num_blocks: int, cache: PrefixCache | None = None) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block besides the null block, not {num_blocks}")
        self.num_blocks = num_blocks
        self.cache = cache
        self._free = FreeQueue(num_blocks)
        self._users = [0] * (num_blocks + 1)
        self.generation = 0  # grows when users of blocks change

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    @property
    def usage(self) -> float:
        return self.num_used / self.num_blocks

    def users(self, block_id: int) -> int:
        return self._users[block_id]

    def can_allocate(self, count: int) -> bool:
        return count <= len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Return empty blocks; evicts the prefixes cached in them."""
        if not self.can_allocate(count):
            raise RuntimeError(f"cannot allocate {count} KV blocks: {len(self._free)} are free")
        self.generation += 1
        blocks = [self._free.pop() for _ in range(count)]
        for block_id in blocks:
            self._users[block_id] = 1
            if self.cache is not None:
                self.cache.evict(block_id)
        return blocks

    def share(self, block_ids: Iterable[int]) -> None:
        self.generation += 1
        for block_id in block_ids:
            if self._users[block_id] == 0:
                self._free.remove(block_id)
            self._users[block_id] += 1

    def free(self, block_ids: Sequence[int]) -> None:
        """Remove a user from each block, given in the order of the table."""
        self.generation += 1
        # Reversed: a prefix is useful without its end, so the end is reused first.
        for block_id in reversed(block_ids):
            if not 1 <= block_id <= self.num_blocks:
                raise RuntimeError(f"cannot free KV block {block_id}: it is not one of 1..{self.num_blocks}")
            if self._users[block_id] == 0:
                raise RuntimeError(f"KV block {block_id} is freed twice")
            self._users[block_id] -= 1
            if self._users[block_id]:
                continue
            if self.cache is not None and block_id in self.cache:
                self._free.append(block_id)
            else:
                self._free.prepend(block_id)

    def check_all_free(self, besides: int = 0) -> None:
        used = self.num_used - besides
        assert used == 0, f"{used} of {self.num_blocks} KV blocks belong to no request and to no hand-over"
