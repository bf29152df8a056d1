"""GroupRule: which blocks a KV group needs; places are indices of a table."""

from collections.abc import Sequence
from typing import Protocol

from kvasir.engine.kv.prefix_cache import PrefixCache
from kvasir.layers.kv import KVSpec, NoKVCache, SlidingWindow


class GroupRule(Protocol):
    def first_read(self, position: int) -> int:
        """Return the first place that tokens from `position` on read; earlier blocks may be freed."""
        ...

    def end(self, first: int, wanted: int) -> int:
        """Return the end of a table from place `first`, for `wanted` blocks."""
        ...

    def most(self, num_blocks: int) -> int:
        """Return how many of `num_blocks` places have blocks at one time, at most."""
        ...

    def growth(self, num_blocks: int, more: int) -> int:
        """Return how many free blocks it takes to decode `more` places."""
        ...

    def find(self, cache: PrefixCache, group: int, hashes: Sequence[bytes], most: int) -> list[int]: ...


class FullAttentionRule:
    def first_read(self, position: int) -> int:
        return 0

    def end(self, first: int, wanted: int) -> int:
        return wanted

    def most(self, num_blocks: int) -> int:
        return num_blocks

    def growth(self, num_blocks: int, more: int) -> int:
        return more

    def find(self, cache: PrefixCache, group: int, hashes: Sequence[bytes], most: int) -> list[int]:
        return cache.find(group, hashes, most)


class SlidingWindowRule:
    """Each token reads the last `window` tokens, itself included."""

    def __init__(self, window: int, block_size: int, longest_chunk: int) -> None:
        self._window = window
        self._block_size = block_size
        self._most = _blocks_touched(window - 1 + longest_chunk, block_size)
        self._decoding = _blocks_touched(window, block_size)

    def first_read(self, position: int) -> int:
        return max(0, position - self._window + 1) // self._block_size

    def end(self, first: int, wanted: int) -> int:
        return min(wanted, first + self._most)

    def most(self, num_blocks: int) -> int:
        return min(num_blocks, self._most)

    def growth(self, num_blocks: int, more: int) -> int:
        return max(0, min(more, self._decoding - num_blocks))

    def find(self, cache: PrefixCache, group: int, hashes: Sequence[bytes], most: int) -> list[int]:
        # The next token reads window - 1 tokens of the prefix.
        return cache.find_end(group, hashes, most, -(-(self._window - 1) // self._block_size))


class NoKVCacheRule:
    def first_read(self, position: int) -> int:
        return 0

    def end(self, first: int, wanted: int) -> int:
        return 0

    def most(self, num_blocks: int) -> int:
        return 0

    def growth(self, num_blocks: int, more: int) -> int:
        return 0

    def find(self, cache: PrefixCache, group: int, hashes: Sequence[bytes], most: int) -> list[int]:
        return []


def rule_of(spec: KVSpec, longest_chunk: int) -> GroupRule:
    if isinstance(spec, NoKVCache):
        return NoKVCacheRule()
    if isinstance(spec, SlidingWindow):
        return SlidingWindowRule(spec.window, spec.block.block_size, longest_chunk)
    return FullAttentionRule()


def _blocks_touched(tokens: int, block_size: int) -> int:
    """Return the most blocks that consecutive tokens touch: 17 tokens touch 3 blocks of 16."""
    return (tokens + block_size - 2) // block_size + 1
