"""What each layer keeps in the KV cache, and the groups of layers that share block tables. No tensors, no torch.

Layers that keep different tokens cannot share a block table: a sliding window frees blocks that full attention
still reads. A model's layers are therefore split into *KV groups* with about as many layers each, as in vLLM's
hybrid KV cache manager. Gemma 3, with five windows W for each full attention F, has six groups:

    layer           0  1  2  3  4  5  6  7  8  9 10 11
    keeps           W  W  W  W  W  F  W  W  W  W  W  F
    group           1  2  3  4  5  0  1  2  3  4  5  0

    memory 0        layers 5, 0, 1, 2, 3, 4     the first layer of each group
    memory 1        layers 11, 6, 7, 8, 9, 10   the second

A block id belongs to one group at a time and is a place in every memory. A memory can therefore serve one layer of
each group, and every block has the same size in bytes, whichever group has it.
"""

from collections.abc import Sequence

import msgspec

ALIKE = 1.25
"""Kinds of layers whose numbers differ by less than this factor have one group each: the padding costs less than
more groups would."""


class BlockShape(msgspec.Struct, frozen=True):
    """One block of one layer."""

    block_size: int
    """Tokens."""
    kv_heads: int
    head_dim: int
    dtype: str
    """A name in torch, such as "bfloat16"."""
    dtype_bytes: int

    @property
    def is_fp8(self) -> bool:
        """Whether K and V are stored in 8 bits, divided by scales."""
        return self.dtype == "float8_e4m3fn"

    @property
    def num_bytes(self) -> int:
        """Bytes of K and V."""
        return 2 * self.block_size * self.kv_heads * self.head_dim * self.dtype_bytes


class FullAttention(msgspec.Struct, frozen=True, tag=True):
    """Keeps K and V of every token."""

    block: BlockShape


class SlidingWindow(msgspec.Struct, frozen=True, tag=True):
    """Keeps K and V of the last tokens: each token attends to `window` tokens, itself included."""

    block: BlockShape
    window: int


KVSpec = FullAttention | SlidingWindow


class KVGroup(msgspec.Struct, frozen=True):
    """Layers that keep the same tokens, and share a block table for each request."""

    spec: KVSpec
    layers: tuple[int, ...]
    """In ascending order. The layer at place i uses memory i. Empty if a stage has no layer of the group."""


class KVCacheConfig(msgspec.Struct, frozen=True):
    """The KV cache of a model, or of a pipeline stage.

    It has `num_blocks` blocks for requests, and the null block, in each of its memories.
    """

    groups: tuple[KVGroup, ...]
    num_blocks: int

    def __post_init__(self) -> None:
        if not self.groups or len({group.spec.block for group in self.groups}) > 1:
            raise ValueError("a KV cache needs at least one group, and blocks of one shape in all groups")

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.groups[0].spec.block.block_size


def num_memories(groups: Sequence[KVGroup]) -> int:
    """Return how many memories the layers of these groups need."""
    return max(len(group.layers) for group in groups)


def block_bytes(groups: Sequence[KVGroup]) -> int:
    """Return the bytes of one block over all memories."""
    return num_memories(groups) * groups[0].spec.block.num_bytes


def layer_specs(block: BlockShape, windows: Sequence[int | None], max_model_len: int) -> list[KVSpec]:
    """Return what each layer keeps, from its window or None. A window that no request exceeds counts as None."""
    return [
        FullAttention(block) if window is None or window >= max_model_len else SlidingWindow(block, window)
        for window in windows
    ]


def make_groups(specs: Sequence[KVSpec]) -> tuple[KVGroup, ...]:
    """Return the KV groups of a model from the specs of its layers, full attention first.

    The layers of one kind are dealt to its groups in turn, so that a pipeline stage has a part of each.
    """
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
    """Return the parts of a model's groups that a pipeline stage with these layers has.

    Groups keep their order, and layers their numbers. A group without a layer in the stage stays, because every
    stage has the block tables of all groups. `num_memories` and `block_bytes` of the result are those of the stage.
    """
    return tuple(KVGroup(group.spec, tuple(layer for layer in group.layers if layer in layers)) for group in groups)
