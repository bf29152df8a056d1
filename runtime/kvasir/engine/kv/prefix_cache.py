"""The index of the prefix cache: chained hashes (request/hashing.py) to KV blocks.

KVManager adds entries and looks them up. BlockPool drops an entry when the content of its block is lost. Each KV
group has entries of its own: the block of a group holds K and V of that group's layers only. In a group, a hash
maps to one block. Several blocks may hold the same content, because requests that run at the same time compute it
twice. Then only the first block is in the index: the worker's tables only grow at their end, so a request cannot
replace its own block by that one.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from kvasir.engine.kv.cache_log import CacheLog

NULL_BLOCK: Final = 0
"""Fills the places of a block table that have no block. It exists in the KV tensors, and is never in the index."""
REPORTED_GROUP: Final = 0
"""The KV group whose hashes frontends get: full attention, if the model has such layers."""


class PrefixLookup(NamedTuple):
    """The cached prefix of a request that waits, and its cost in free blocks, as of some generation."""

    generation: tuple[int, int]
    """Of the pool and of the cache: while both stand, so does the lookup."""
    num_tokens: int
    tables: list[list[int]]
    """A block table for each KV group, all of one length."""
    cost: int


class PrefixCache:
    """Full blocks by group and hash, both free and in use."""

    def __init__(self, num_groups: int = 1) -> None:
        self._blocks: list[dict[bytes, int]] = [{} for _ in range(num_groups)]
        self._key_of: dict[int, tuple[int, bytes]] = {}
        self.generation = 0
        """Goes up when entries are added or dropped: a lookup may then find something else."""
        self.log: CacheLog | None = None
        """Notes the changes of the first group, while frontends want them."""

    def __len__(self) -> int:
        return len(self._key_of)

    def __contains__(self, block_id: int) -> bool:
        """Return whether this block is in the index."""
        return block_id in self._key_of

    def find(self, group: int, hashes: Sequence[bytes], most: int) -> list[int]:
        """Return the blocks of the longest cached prefix of this chain, of its first `most` hashes."""
        block_of = self._blocks[group]
        found = []
        for block_hash in islice(hashes, most):
            block_id = block_of.get(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def find_end(self, group: int, hashes: Sequence[bytes], most: int, needed: int) -> list[int]:
        """Return the table of the longest prefix of this chain whose last `needed` blocks are cached.

        The prefix has at most `most` blocks; one with fewer than `needed` must be cached from its beginning. The
        search goes from right to left, and the table has null blocks before the needed ones.
        """
        block_of = self._blocks[group]
        end = start = min(most, len(hashes))
        while start > max(0, end - needed):
            start -= 1
            if hashes[start] not in block_of:
                end = start
        return [NULL_BLOCK] * start + [block_of[block_hash] for block_hash in hashes[start:end]]

    def put(self, group: int, block_hash: bytes, block_id: int) -> None:
        """Add a block that holds this content, or will after the step that is being scheduled.

        That is early enough: a step writes all of its K and V before any of its tokens reads them.
        """
        if block_hash not in self._blocks[group]:
            self.generation += 1
            self._blocks[group][block_hash] = block_id
            self._key_of[block_id] = (group, block_hash)
            if self.log is not None and group == REPORTED_GROUP:
                self.log.stored(block_hash)

    def evict(self, block_id: int) -> None:
        """Drop this block, because its content will be overwritten. It need not be in the index."""
        key = self._key_of.pop(block_id, None)
        if key is not None:
            self.generation += 1
            group, block_hash = key
            del self._blocks[group][block_hash]
            if self.log is not None and group == REPORTED_GROUP:
                self.log.evicted(block_hash)

    def hashes(self, block_ids: Iterable[int]) -> list[bytes]:
        """Return the hashes of those of these blocks that the first group has in the index."""
        keys = map(self._key_of.get, block_ids)
        return [key[1] for key in keys if key is not None and key[0] == REPORTED_GROUP]

    def drop(self, hashes: Iterable[bytes]) -> None:
        """Drop the entries of these hashes in all groups."""
        self.generation += 1
        for block_hash in hashes:
            for group, block_of in enumerate(self._blocks):
                block_id = block_of.pop(block_hash, None)
                if block_id is not None:
                    del self._key_of[block_id]
                    if self.log is not None and group == REPORTED_GROUP:
                        self.log.evicted(block_hash)

    def clear(self) -> None:
        self.generation += 1
        self._key_of.clear()
        for block_of in self._blocks:
            block_of.clear()
        if self.log is not None:
            self.log.cleared()

    def check(self) -> None:
        """Raise AssertionError if the two directions do not agree."""
        num_prefixes = sum(map(len, self._blocks))
        assert num_prefixes == len(self._key_of), (
            f"{num_prefixes} prefixes are cached in {len(self._key_of)} blocks"
        )
