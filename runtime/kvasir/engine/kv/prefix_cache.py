"""The index of the prefix cache: it maps the chained hashes of kvasir.hashing to the KV blocks with that content.

RequestBlocks adds entries and looks them up. BlockPool drops an entry when the content of its block is lost. A hash
maps to one block. Several blocks may hold the same content, because requests that run at the same time compute it
twice. Then only the first block is in the index: block tables only grow at their end, so a table cannot replace its
own block by that one.
"""

from collections.abc import Iterable
from typing import NamedTuple


class PrefixLookup(NamedTuple):
    """The cached prefix of a request that waits, and its cost in free blocks, as of some generation."""

    generation: tuple[int, int]
    """Of the pool and of the cache: while both stand, so does the lookup."""
    num_tokens: int
    block_ids: list[int]
    cost: int


class PrefixCache:
    """Full blocks by hash, both free and in use."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self.generation = 0
        """Goes up when entries are added or dropped: a lookup may then find something else."""

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, block_id: int) -> bool:
        """Return whether this block is in the index."""
        return block_id in self._hash_of

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """Return the blocks of the longest cached prefix of this chain."""
        found = []
        for block_hash in hashes:
            block_id = self._block_of.get(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def put(self, block_hash: bytes, block_id: int) -> None:
        """Add a block that holds this content, or will after the step that is being scheduled.

        That is early enough: a step writes all of its K and V before any of its tokens reads them.
        """
        if block_hash not in self._block_of:
            self.generation += 1
            self._block_of[block_hash] = block_id
            self._hash_of[block_id] = block_hash

    def evict(self, block_id: int) -> None:
        """Drop this block, because its content will be overwritten. It need not be in the index."""
        block_hash = self._hash_of.pop(block_id, None)
        if block_hash is not None:
            self.generation += 1
            del self._block_of[block_hash]

    def drop(self, hashes: Iterable[bytes]) -> None:
        """Drop the entries of these hashes."""
        self.generation += 1
        for block_hash in hashes:
            block_id = self._block_of.pop(block_hash, None)
            if block_id is not None:
                del self._hash_of[block_id]

    def clear(self) -> None:
        self.generation += 1
        self._block_of.clear()
        self._hash_of.clear()

    def check(self) -> None:
        """Raise AssertionError if the two directions do not agree."""
        assert len(self._block_of) == len(self._hash_of), (
            f"{len(self._block_of)} prefixes are cached in {len(self._hash_of)} blocks"
        )
