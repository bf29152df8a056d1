"""The KV cache of each layer, and the groups of layers that share block tables. Imports no torch.

A block id belongs to one group and is an index of every memory, so a memory serves one layer of each group
(docs/design/kv-cache.md).
"""

from collections.abc import Sequence

import msgspec

# Below this ratio of layers, padding costs less than more groups.
ALIKE = 1.25


class BlockShape(msgspec.Struct, frozen=True):
    block_size: int  # tokens
    kv_heads: int
    head_dim: int
    dtype: str  # a name in torch: "bfloat16"
    dtype_bytes: int

    @property
    def is_fp8(self) -> bool:
        return self.dtype == "float8_e4m3fn"

    @property
    def num_bytes(self) -> int:
        return 2 * self.block_size * self.kv_heads * self.head_dim * self.dtype_bytes


class FullAttention(msgspec.Struct, frozen=True, tag=True):
    block: BlockShape


class SlidingWindow(msgspec.Struct, frozen=True, tag=True):
    block: BlockShape
    window: int  # tokens


class PerRequest(msgspec.Struct, frozen=True, tag=True):
    """The model keeps a cache of its own for each request; blocks only count its bytes."""

    block: BlockShape
    request_bytes: int  # of a request, whatever its length: recurrent states


class NoKVCache(msgspec.Struct, frozen=True, tag=True):
    """Whole prompts in one step: attention reads K and V of the step itself."""

    block: BlockShape


KVSpec = FullAttention | SlidingWindow | PerRequest | NoKVCache


class KVGroup(msgspec.Struct, frozen=True):
    """Layers that keep the same tokens, and share a block table for each request."""

    # A window frees blocks that full attention still reads, so the two cannot share a table.
    spec: KVSpec
    layers: tuple[int, ...]  # ascending; empty if a pipeline stage has no layer of the group, and without KV


class KVCacheConfig(msgspec.Struct, frozen=True):
    groups: tuple[KVGroup, ...]
    num_blocks: int  # without the null block

    def __post_init__(self) -> None:
        if not self.groups or len({group.spec.block for group in self.groups}) > 1:
            raise ValueError("a KV cache needs at least one group, and blocks of one shape in all groups")

    @property
    def block_size(self) -> int:
        return self.groups[0].spec.block.block_size


def keeps_own_cache(groups: Sequence[KVGroup]) -> bool:
    """Return whether the model keeps a cache of its own, which has no earlier states."""
    return any(isinstance(group.spec, PerRequest) for group in groups)


def num_memories(groups: Sequence[KVGroup]) -> int:
    return max(len(group.layers) for group in groups)


def block_bytes(groups: Sequence[KVGroup]) -> int:
    return num_memories(groups) * groups[0].spec.block.num_bytes


def layer_specs(block: BlockShape, windows: Sequence[int | None], max_model_len: int) -> list[KVSpec]:
    """Return the spec of each layer. A window that no request exceeds counts as None."""
    return [
        FullAttention(block) if window is None or window >= max_model_len else SlidingWindow(block, window)
        for window in windows
    ]


def make_groups(specs: Sequence[KVSpec]) -> tuple[KVGroup, ...]:
    """Return the KV groups of a model, full attention first."""
    # Neighbouring layers go to different groups, so that a pipeline stage has a part of each.
    kinds: dict[KVSpec, list[int]] = {}
    for layer, spec in enumerate(specs):
        kinds.setdefault(spec, []).append(layer)
    sizes = [len(layers) for layers in kinds.values()]
    size = max(sizes) if max(sizes) < min(sizes) * ALIKE else min(sizes)
    groups = []
    for spec, layers in sorted(kinds.items(), key=lambda kind: isinstance(kind[0], SlidingWindow)):
        count = -(-len(layers) // size)
        groups += [KVGroup(spec, tuple(layers[place::count])) for place in range(count)]
    return tuple(groups)


def groups_of_stage(groups: Sequence[KVGroup], layers: range) -> tuple[KVGroup, ...]:
    # Layers keep their numbers. Empty groups stay: each stage has all block tables.
    return tuple(KVGroup(group.spec, tuple(layer for layer in group.layers if layer in layers)) for group in groups)
