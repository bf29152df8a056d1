"""PrefixCache: the index from chained hashes (request/hashing.py) to KV blocks, for each KV group."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from kvasir.engine.engine_request import NULL_BLOCK


class CacheChanges(NamedTuple):  # no hash is in both lists
    was_cleared: bool
    stored: list[bytes]
    evicted: list[bytes]


class CacheLog:
    def __init__(self) -> None:
        self._was_cleared = False
        # None: evicted and stored again, perhaps in a block that a snapshot has passed
        self._is_stored: dict[bytes, bool | None] = {}

    def __len__(self) -> int:
        return len(self._is_stored)

    @property
    def is_empty(self) -> bool:
        return not (self._is_stored or self._was_cleared)

    def stored(self, block_hash: bytes) -> None:
        was_evicted = self._is_stored.pop(block_hash, None) is False
        self._is_stored[block_hash] = None if was_evicted else True

    def evicted(self, block_hash: bytes) -> None:
        if not self._is_stored.pop(block_hash, None):
            self._is_stored[block_hash] = False

    def cleared(self) -> None:
        self._is_stored.clear()
        self._was_cleared = True

    def take(self) -> CacheChanges:
        stored = [block_hash for block_hash, is_stored in self._is_stored.items() if is_stored is not False]
        evicted = [block_hash for block_hash, is_stored in self._is_stored.items() if is_stored is False]
        changes = CacheChanges(self._was_cleared, stored, evicted)
        self._is_stored = {}
        self._was_cleared = False
        return changes


REPORTED_GROUP: Final = 0  # whose hashes frontends get: full attention, if the model has it


class PrefixCache:
    def __init__(self, num_groups: int = 1) -> None:
        self._blocks: list[dict[bytes, int]] = [{} for _ in range(num_groups)]
        self._key_of: dict[int, tuple[int, bytes]] = {}
        self.generation = 0  # grows when entries change
        self.log: CacheLog | None = None  # while a frontend follows REPORTED_GROUP

    def __len__(self) -> int:
        return len(self._key_of)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._key_of

    def find(self, group: int, hashes: Sequence[bytes], most: int) -> list[int]:
        """Return the blocks of the longest cached prefix, up to `most`."""
        block_of = self._blocks[group]
        found = []
        for block_hash in islice(hashes, most):
            block_id = block_of.get(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def find_end(self, group: int, hashes: Sequence[bytes], most: int, needed: int) -> list[int]:
        """Return the table of the longest prefix whose last `needed` blocks are cached, with null blocks before.

        A prefix of fewer than `needed` blocks must be cached whole.
        """
        block_of = self._blocks[group]
        end = start = min(most, len(hashes))
        while start > max(0, end - needed):
            start -= 1
            if hashes[start] not in block_of:
                end = start
        return [NULL_BLOCK] * start + [block_of[block_hash] for block_hash in hashes[start:end]]

    def put(self, group: int, block_hash: bytes, block_id: int) -> None:
        # Equal blocks may be computed at the same time. The first one stays: workers' tables only grow.
        if block_hash not in self._blocks[group]:
            self.generation += 1
            self._blocks[group][block_hash] = block_id
            self._key_of[block_id] = (group, block_hash)
            if self.log is not None and group == REPORTED_GROUP:
                self.log.stored(block_hash)

    def evict(self, block_id: int) -> None:
        key = self._key_of.pop(block_id, None)
        if key is not None:
            self.generation += 1
            group, block_hash = key
            del self._blocks[group][block_hash]
            if self.log is not None and group == REPORTED_GROUP:
                self.log.evicted(block_hash)

    def hashes(self, block_ids: Iterable[int]) -> list[bytes]:
        keys = map(self._key_of.get, block_ids)
        return [key[1] for key in keys if key is not None and key[0] == REPORTED_GROUP]

    def drop(self, hashes: Iterable[bytes]) -> None:
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
        num_prefixes = sum(map(len, self._blocks))
        assert num_prefixes == len(self._key_of), (
            f"{num_prefixes} prefixes are cached in {len(self._key_of)} blocks"
        )
