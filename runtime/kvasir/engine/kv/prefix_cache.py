"""Which KV block holds which prefix: the index of the prefix cache, by the chained hashes of kvasir.hashing.

Filled and asked by RequestBlocks; BlockPool tells it when a block's content is lost. A hash leads to one block.
Several blocks may hold the same content (requests that came together compute it twice): the first one is known and
the others are not, because block tables only ever grow at their end.
"""

from collections.abc import Iterable


class PrefixCache:
    """Full blocks by hash. Whether a block is in use is the pool's matter: both kinds are found."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, block_id: int) -> bool:
        """Whether this block can be found."""
        return block_id in self._hash_of

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks of the longest prefix of this chain that is cached."""
        found = []
        for block_hash in hashes:
            block_id = self._block_of.get(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def put(self, block_hash: bytes, block_id: int) -> None:
        """The block holds this content, or will by the end of the step that is being scheduled: a step writes all
        of its K and V before any of its tokens reads them."""
        if block_hash not in self._block_of:
            self._block_of[block_hash] = block_id
            self._hash_of[block_id] = block_hash

    def forget(self, block_id: int) -> None:
        """The block's content is about to be overwritten; it may be one that was never known."""
        block_hash = self._hash_of.pop(block_id, None)
        if block_hash is not None:
            del self._block_of[block_hash]

    def drop(self, hashes: Iterable[bytes]) -> None:
        """Content of these hashes is not to be found any more."""
        for block_hash in hashes:
            block_id = self._block_of.pop(block_hash, None)
            if block_id is not None:
                del self._hash_of[block_id]

    def clear(self) -> None:
        self._block_of.clear()
        self._hash_of.clear()

    def check(self) -> None:
        """Raises AssertionError where the two directions do not agree."""
        assert len(self._block_of) == len(self._hash_of), (
            f"{len(self._block_of)} prefixes are cached in {len(self._hash_of)} blocks"
        )
