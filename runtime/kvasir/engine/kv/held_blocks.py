"""HeldBlocks: blocks that belong to a hand-over between engines, not to a request."""

from collections import Counter
from collections.abc import Sequence

from kvasir.engine.kv.block_pool import BlockPool

_GROUP = 0  # hand-overs need a cache with one KV group


class HeldBlocks:
    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._holders: Counter[int] = Counter()

    @property
    def num_blocks(self) -> int:
        return len(self._holders)

    def find(self, hashes: Sequence[bytes], most: int) -> list[int]:
        return [] if self._pool.cache is None else self._pool.cache.find(_GROUP, hashes, most)

    def hold(self, block_ids: Sequence[int]) -> None:
        self._pool.share(block_ids)
        self._holders.update(block_ids)

    def hold_empty(self, count: int) -> list[int]:
        block_ids = self._pool.allocate(count)
        self._holders.update(block_ids)
        return block_ids

    def store(self, hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        if self._pool.cache is not None:
            for block_hash, block_id in zip(hashes, block_ids, strict=True):
                self._pool.cache.put(_GROUP, block_hash, block_id)

    def release(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            self._holders[block_id] -= 1
            if not self._holders[block_id]:
                del self._holders[block_id]
        # in the order of the prompt: its end is reused first
        self._pool.free(block_ids)
