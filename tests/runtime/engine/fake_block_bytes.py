"""The bytes of the fake executor's KV blocks: for each slot the token and its prefix."""

import struct
from collections.abc import Sequence

from kvasir.worker.kv_memory.block_bytes import BlockBytes

_SLOT = struct.Struct("<qq")
_EMPTY = (-1, -1)


class FakeBlockBytes(BlockBytes):
    def __init__(self, slots: dict[int, tuple[int, int]], block_size: int) -> None:
        self._slots = slots
        self._block_size = block_size
        self.block_bytes = block_size * _SLOT.size
        self.layout = "fake"

    def read(self, block_ids: Sequence[int]) -> memoryview:
        content = [self._slots.get(slot, _EMPTY) for slot in self._slots_of(block_ids)]
        return memoryview(b"".join(_SLOT.pack(*each) for each in content))

    def write(self, block_ids: Sequence[int], content: memoryview) -> None:
        for slot, (token_id, prefix) in zip(self._slots_of(block_ids), _SLOT.iter_unpack(content), strict=True):
            self._slots[slot] = token_id, prefix

    def _slots_of(self, block_ids: Sequence[int]) -> list[int]:
        size = self._block_size
        return [slot for block_id in block_ids for slot in range(block_id * size, (block_id + 1) * size)]
