"""Blocks that belong to no request: those of hand-overs to and from other engines. KVManager owns it."""

from collections import Counter
from collections.abc import Sequence

from kvasir.engine.kv.block_pool import BlockPool

_GROUP = 0
"""Hand-overs need a cache with one KV group."""


class HeldBlocks:
    """Holds blocks, so that nothing else gets them, until they are released."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._holders: Counter[int] = Counter()

    @property
    def num_blocks(self) -> int:
        """The number of blocks that are held at least once."""
        return len(self._holders)

    def find(self, hashes: Sequence[bytes], most: int) -> list[int]:
        """Return the blocks of the longest cached prefix of this chain."""
        return [] if self._pool.cache is None else self._pool.cache.find(_GROUP, hashes, most)

    def hold(self, block_ids: Sequence[int]) -> None:
        """Hold blocks that are in the prefix cache. They keep their content."""
        self._pool.share(block_ids)
        self._holders.update(block_ids)

    def hold_empty(self, count: int) -> list[int]:
        """Take so many blocks from the pool, which must have them, and hold them."""
        block_ids = self._pool.allocate(count)
        self._holders.update(block_ids)
        return block_ids

    def store(self, hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Put held blocks into the prefix cache: they have this content now."""
        if self._pool.cache is not None:
            for block_hash, block_id in zip(hashes, block_ids, strict=True):
                self._pool.cache.put(_GROUP, block_hash, block_id)

    def release(self, block_ids: Sequence[int]) -> None:
        """End a hold. `block_ids` are in the order of the prompt, so that its end is reused first."""
        for block_id in block_ids:
            self._holders[block_id] -= 1
            if not self._holders[block_id]:
                del self._holders[block_id]
        self._pool.free(block_ids)
