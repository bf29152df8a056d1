"""Attention over a paged KV cache: the shapes, and the interface between layers and attention backends.

Once per step, the planner of each KV group makes an AttentionPlan: where the step's K and V are written, and which
tokens attend to which. Every layer of the group follows it. `kvasir.layers.attention_backends` implements plans.
"""

from collections.abc import Set
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvasir.layers.kv import BlockShape, KVSpec
from kvasir.layers.parameter import Placement
from kvasir.layers.rotary import Rotation
from kvasir.layers.step_memory import StepMemory

Ints = npt.NDArray[np.int64]
BlockTable = npt.NDArray[np.int32]
"""[rows, blocks] block ids of requests, in the order of their tokens"""


@dataclass(frozen=True)
class HeadShape:
    """Query heads share K/V heads in equal groups (GQA, Ainslie et al., 2023)."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    def local(self, ranks: int) -> "HeadShape":
        """Return the heads of one rank if the heads are split. K/V heads fewer than the ranks are replicated."""
        return HeadShape(self.heads // ranks, max(1, self.kv_heads // ranks), self.head_dim)

    def kv_copies(self, ranks: int) -> int:
        """Return the number of neighbouring ranks that hold the same K/V heads."""
        return max(1, ranks // self.kv_heads)

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    def kv_bytes(self, dtype: torch.dtype) -> int:
        """Of a token in one layer."""
        return 2 * self.kv_size * dtype.itemsize


@dataclass(frozen=True)
class KVScales:
    """What K and V of a layer are divided by before an fp8 cache stores them."""

    k: float = 1.0
    v: float = 1.0


UNSCALED: Final = KVScales()


class KVCache:
    """One layer's cache: [num_blocks, 2, kv_heads, block_size, head_dim], K at 0 and V at 1.

    Within a block each head's tokens are contiguous, and so they are when blocks are gathered head by head: matrix
    products over contiguous K and V are what CPUs are fast at (up to 10 times faster in bfloat16 than over
    interleaved heads). The token at position p of a request lies in block `block_table[p // block_size]` at
    `p % block_size`.

    `group`: the KV group that the layer belongs to. Layers of one group share the block tables of the requests.
    `scales`: of an fp8 cache. They are set before the first step, and CUDA graphs capture them.
    """

    def __init__(self, blocks: Tensor, group: int = 0) -> None:
        self.blocks = blocks
        self.group = group
        self.scales = UNSCALED
        self.by_token = blocks.permute(0, 3, 1, 2, 4)  # [num_blocks, block_size, 2, kv_heads, head_dim]
        self.by_head = blocks.flatten(0, 2).flatten(1)  # [num_blocks * 2 * kv_heads, block_size * head_dim]
        assert self.by_head.data_ptr() == blocks.data_ptr(), "the cache must be contiguous"


def head_major_cache(memory: Tensor, block: BlockShape, group: int) -> KVCache:
    """Return a layer's cache in a memory [numbers] that may serve one layer of each group."""
    return KVCache(memory.view(-1, 2, block.kv_heads, block.block_size, block.head_dim), group)


@dataclass(frozen=True)
class StepRows:
    """The rows of a step: B requests with T new tokens. Rows with one new token stand first, by length."""

    rows: Ints  # [B] rows of the block table
    computed: Ints  # [B] tokens before the step
    new: Ints  # [B] tokens of the step
    token_rows: Ints  # [T] the row of each token
    token_blocks: Ints  # [T] the place in the row of the block that each token's K and V are written to
    offsets: Ints  # [T] and the place in that block


class AttentionPlan(Protocol):
    """One step's attention, for the layers of one KV group.

    All K and V of a step are written before a query reads, so that requests of one step may share blocks. Only
    blocks that hold a position within a query's window are read: earlier ones may be the null block, or already
    belong to another request.
    """

    def write(self, kv: Tensor, cache: KVCache) -> None:
        """Write K and V [T, 2 * kv_heads * head_dim] of the step's tokens."""
        ...

    def attend(
        self, q: Tensor, cache: KVCache, scale: float, *, window: int | None = None, softcap: float | None = None
    ) -> Tensor:
        """[T, heads * head_dim] → the same shape. The step's K and V must be in the cache.

        Each token sees itself and the tokens before it, the last `window` ones in all. `softcap` bounds the scores
        before the mask, as softcap * tanh(score / softcap).
        """
        ...

    def write_and_attend(
        self,
        qkv: Tensor,
        cache: KVCache,
        scale: float,
        *,
        window: int | None = None,
        softcap: float | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """`write`, then `attend`: [T, (heads + 2 kv_heads) * head_dim] → [T, heads * head_dim].

        Given a rotation, Q and K are rotated by it first, and qkv is not preserved. Most layers need all of this; a
        backend can be faster if it has Q, K and V at once.
        """
        ...


class AttentionPlanner(Protocol):
    def plan(self, step: StepRows) -> AttentionPlan: ...


@runtime_checkable
class PadsDecodes(AttentionPlanner, Protocol):
    """A planner whose plans a CUDA graph can follow."""

    def plan_padded(self, step: StepRows, size: int) -> AttentionPlan:
        """Plan a step of up to `size` rows of one new token each for `size` tokens.

        The tokens behind those of the step attend to nothing, and are written to the null block. All tensors of a
        plan and all sizes of launches are functions of `size`, except for the content of the tensors.
        """
        ...


class AttentionBackend(Protocol):
    """A way to compute attention."""

    @property
    def name(self) -> str: ...

    def supports(self, spec: KVSpec, heads: HeadShape, placement: Placement) -> bool:
        """`spec`: its blocks may be fp8, in which K and V are divided by the scales of their KVCache."""
        ...

    def cache(self, memory: Tensor, block: BlockShape, group: int) -> KVCache:
        """Lay the cache of a layer out in a memory [numbers] of zeros.

        The memory may serve one layer of each KV group, with other block ids.
        """
        ...

    def planner(
        self,
        table: BlockTable,
        spec: KVSpec,
        heads: HeadShape,
        windows: Set[int | None],
        placement: Placement,
        memory: StepMemory,
    ) -> AttentionPlanner:
        """`table`: the group's block table, whose content changes from step to step; `windows`: those of its
        layers, None for a layer that sees all tokens. `memory`: for arrays of plans that a device reads."""
        ...
