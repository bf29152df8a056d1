"""CacheLog: the net changes of the prefix cache since the last report to the frontends."""

from typing import NamedTuple


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
