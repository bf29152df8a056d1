"""The bytes of KV blocks, for hand-overs between engines. Imports no torch."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class BlockBytes(Protocol):
    """Reads and writes blocks from any thread, while no step uses them."""

    # Over all memories.
    block_bytes: int
    # Engines of different layouts cannot exchange blocks.
    layout: str

    def read(self, block_ids: Sequence[int]) -> memoryview: ...

    def write(self, block_ids: Sequence[int], content: memoryview) -> None: ...


class HostBlockBytes:
    def __init__(self, memories: Sequence[Bytes], layout: str) -> None:
        # `memories`: each [num_blocks + 1, bytes of a block].
        self._memories = tuple(memories)
        self._size = memories[0].shape[1]
        self.block_bytes = self._size * len(memories)
        self.layout = layout

    def read(self, block_ids: Sequence[int]) -> memoryview:
        content: Bytes = np.empty((len(block_ids), len(self._memories), self._size), np.uint8)
        for place, block_id in enumerate(block_ids):
            for index, memory in enumerate(self._memories):
                content[place, index] = memory[block_id]
        return content.reshape(-1).data

    def write(self, block_ids: Sequence[int], content: memoryview) -> None:
        shape = len(block_ids), len(self._memories), self._size
        blocks: Bytes = np.frombuffer(content, np.uint8).reshape(shape)
        for place, block_id in enumerate(block_ids):
            for index, memory in enumerate(self._memories):
                memory[block_id] = blocks[place, index]
