"""Attention over a paged KV cache: shapes and the interface of backends."""

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
BlockTable = npt.NDArray[np.int32]  # [rows, blocks] ids, in the order of tokens


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
        # With more ranks than K/V heads, neighbouring ranks hold copies.
        return HeadShape(self.heads // ranks, max(1, self.kv_heads // ranks), self.head_dim)

    def kv_copies(self, ranks: int) -> int:
        return max(1, ranks // self.kv_heads)

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    def kv_bytes(self, dtype: torch.dtype) -> int:
        return 2 * self.kv_size * dtype.itemsize


@dataclass(frozen=True)
class KVScales:
    k: float = 1.0
    v: float = 1.0


UNSCALED: Final = KVScales()


class KVCache:
    """One layer's cache: [num_blocks, 2, kv_heads, block_size, head_dim], K at 0 and V at 1.

    The token at position p of a request is in block `block_table[p // block_size]` at `p % block_size`.
    """

    # CPUs multiply K and V faster if a head's tokens are contiguous.
    def __init__(self, blocks: Tensor, group: int = 0) -> None:
        self.blocks = blocks
        self.group = group
        self.scales = UNSCALED  # set before CUDA graphs capture it
        self.by_token = blocks.permute(0, 3, 1, 2, 4)  # [num_blocks, block_size, 2, kv_heads, head_dim]
        self.by_head = blocks.flatten(0, 2).flatten(1)  # [num_blocks * 2 * kv_heads, block_size * head_dim]
        assert self.by_head.data_ptr() == blocks.data_ptr(), "the cache must be contiguous"


def head_major_cache(memory: Tensor, block: BlockShape, group: int) -> KVCache:
    return KVCache(memory.view(-1, 2, block.kv_heads, block.block_size, block.head_dim), group)


@dataclass(frozen=True)
class StepRows:
    """B requests with T new tokens. Rows with one new token come first, by length."""

    rows: Ints  # [B] of the block table
    computed: Ints  # [B] earlier tokens
    new: Ints  # [B]
    token_rows: Ints  # [T] of the block table
    token_blocks: Ints  # [T] column of the block table
    offsets: Ints  # [T] within the block


@dataclass(frozen=True, eq=False)
class ScoreRule:
    """How a layer scores the tokens that a query reads."""

    scale: float  # multiplies the scores
    window: int | None = None  # tokens, the query's own included; None: all
    softcap: float | None = None  # bounds a score: softcap * tanh(score / softcap)
    # [heads] float32: scores that take weight from the tokens: softmax([scores, sink]) without its last number.
    sinks: Tensor | None = None


class AttentionPlan(Protocol):
    """A step of one KV group. Writes all K and V before any query reads, because requests may share blocks.

    Blocks outside a query's window may belong to another request, and are not read.
    """

    def write(self, kv: Tensor, cache: KVCache) -> None:  # kv [T, 2 * kv_heads * head_dim]
        ...

    def attend(self, q: Tensor, cache: KVCache, rule: ScoreRule) -> Tensor:
        """Attend: q [T, heads * head_dim] → the same shape."""
        ...

    def write_and_attend(
        self, qkv: Tensor, cache: KVCache, rule: ScoreRule, rotation: Rotation | None = None
    ) -> Tensor:
        """Rotate Q and K, write, then attend: [T, (heads + 2 kv_heads) * head_dim] → [T, heads * head_dim]."""
        ...  # may change qkv


class AttentionPlanner(Protocol):
    def plan(self, step: StepRows) -> AttentionPlan: ...


@runtime_checkable
class PadsDecodes(AttentionPlanner, Protocol):
    def plan_padded(self, step: StepRows, size: int) -> AttentionPlan:
        """Plan up to `size` rows of one new token. Shapes and addresses depend on `size` only.

        The padding attends to nothing, and is written to the null block.
        """
        ...


class AttentionBackend(Protocol):
    @property
    def name(self) -> str: ...

    def supports(self, spec: KVSpec, heads: HeadShape, placement: Placement) -> bool: ...

    # One layer of each group may share `memory`, which is zeroed.
    def cache(self, memory: Tensor, block: BlockShape, group: int) -> KVCache: ...

    def planner(
        self,
        table: BlockTable,
        spec: KVSpec,
        heads: HeadShape,
        windows: Set[int | None],
        placement: Placement,
        memory: StepMemory,
    ) -> AttentionPlanner: ...
