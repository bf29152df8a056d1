"""Attention by the CPU kernel, which reads the cache in place."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from torch import Tensor

from kvasir.kernels.cpu import MAX_TILE_ROWS, Kernels, PagedStep
from kvasir.kernels.token_parts import Columns, columns, token_parts
from kvasir.layers.attention import BlockTable, HeadShape, Ints, KVCache, ScoreRule, StepRows
from kvasir.layers.rotary import Rotation, rotate_qk_

# New tokens of a request in a step. Fewer, such as guesses that are checked, are computed like decodes.
MIN_PROMPT_TOKENS: Final = 32


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


class TilePlanner:
    """Plans tiles of up to MAX_TILE_ROWS rows. With `pairs`, prompts have tiles of up to Kernels.pair_rows."""

    def __init__(
        self,
        kernels: Kernels,
        table: BlockTable,
        block_size: int,
        heads: HeadShape,
        *,
        pairs: bool = False,
    ) -> None:
        self._kernels = kernels
        self._table = table
        self._block_size = block_size
        self._heads = heads
        self._pairs = pairs
        self._tokens_per_tile = MAX_TILE_ROWS // heads.group
        self._prompt_tokens = (kernels.pair_rows if pairs else MAX_TILE_ROWS) // heads.group

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
            pairs=self._pairs,
        )
        return TilePlan(self._kernels, paged, (slots, table, tiles))

    def _tiles(self, rows: Ints, computed: Ints, new: Ints) -> Columns:
        # [N, 4] row of the block table, first token in the step, tokens, position of the first token
        most = np.where(new < MIN_PROMPT_TOKENS, self._tokens_per_tile, self._prompt_tokens)
        request, token, tokens, position = token_parts(computed, new, most)
        return columns(rows[request], token, tokens, position)
