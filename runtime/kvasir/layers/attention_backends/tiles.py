"""Attention by the CPU kernel, which reads the cache in place."""

from collections.abc import Set
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from kvasir.kernels.cpu import LANES, MAX_HEAD_NUMBERS, MAX_TILE_ROWS, Kernels, PagedStep, kernels_for
from kvasir.kernels.token_parts import Columns, columns, token_parts
from kvasir.layers.attention import BlockTable, HeadShape, Ints, KVCache, ScoreRule, StepRows, head_major_cache
from kvasir.layers.kv import BlockShape, KVSpec
from kvasir.layers.parameter import Placement
from kvasir.layers.rotary import Rotation, rotate_qk_
from kvasir.layers.step_memory import StepMemory


@dataclass(frozen=True)
class TilePlan:
    kernels: Kernels
    step: PagedStep
    # Keeps the arrays alive that `step` points to.
    arrays: tuple[object, ...]

    def write(self, kv: Tensor, cache: KVCache) -> None:
        self.kernels.write(self.step, kv, cache.blocks)

    def attend(self, q: Tensor, cache: KVCache, rule: ScoreRule) -> Tensor:
        return self.kernels.attend(self.step, q, cache.blocks, rule.window, rule.scale, rule.softcap, rule.sinks)

    def write_and_attend(
        self, qkv: Tensor, cache: KVCache, rule: ScoreRule, rotation: Rotation | None = None
    ) -> Tensor:
        if rotation is not None:
            rotate_qk_(qkv, self.step.kv_heads, self.step.head_dim, rotation)
        return self.kernels.write_and_attend(
            self.step, qkv, cache.blocks, rule.window, rule.scale, rule.softcap, rule.sinks
        )


class TileBackend:
    name = "cpu"

    def supports(self, spec: KVSpec, heads: HeadShape, placement: Placement) -> bool:
        fits = heads.head_dim % LANES == 0 and heads.head_dim <= MAX_HEAD_NUMBERS and heads.group <= MAX_TILE_ROWS
        fits = fits and not spec.block.is_fp8
        return fits and kernels_for(placement.device, placement.dtype) is not None

    def cache(self, memory: Tensor, block: BlockShape, group: int) -> KVCache:
        return head_major_cache(memory, block, group)

    def planner(
        self,
        table: BlockTable,
        spec: KVSpec,
        heads: HeadShape,
        windows: Set[int | None],
        placement: Placement,
        memory: StepMemory,
    ) -> "TilePlanner":
        kernels = kernels_for(placement.device, placement.dtype)
        assert kernels is not None, "a planner needs a group that the backend supports"
        return TilePlanner(kernels, table, spec.block.block_size, heads)


class TilePlanner:
    def __init__(self, kernels: Kernels, table: BlockTable, block_size: int, heads: HeadShape) -> None:
        self._kernels = kernels
        self._table = table
        self._block_size = block_size
        self._heads = heads
        self._tokens_per_tile = MAX_TILE_ROWS // heads.group

    def plan(self, step: StepRows) -> TilePlan:
        table, heads = self._table, self._heads
        blocks = table[step.token_rows, step.token_blocks].astype(np.int64)
        slots = blocks * self._block_size + step.offsets
        tiles = self._tiles(step.rows, step.computed, step.new)
        paged = PagedStep(
            slots=slots.ctypes.data,
            blocks=table.ctypes.data,
            tiles=tiles.ctypes.data,
            num_tokens=len(slots),
            num_tiles=len(tiles),
            blocks_stride=table.shape[1],
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            block_size=self._block_size,
        )
        return TilePlan(self._kernels, paged, (slots, table, tiles))

    def _tiles(self, rows: Ints, computed: Ints, new: Ints) -> Columns:
        # [N, 4] row of the block table, first token in the step, tokens, position of the first token
        request, token, tokens, position = token_parts(computed, new, self._tokens_per_tile)
        return columns(rows[request], token, tokens, position)
