"""Plans a step's attention for the Triton kernels: slots, block tables and work lists."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kvasir.kernels.token_parts import Columns
from kvasir.kernels.triton.device_support import tiles_for
from kvasir.kernels.triton.paged_kernels import PagedKernels, Partials, Work
from kvasir.kernels.triton.tiling import (
    FP8_TILES,
    AttentionTile,
    PagedShape,
    StepKind,
    attention_tile,
    decodes_kind,
)
from kvasir.kernels.triton.work_list import WorkList, most_items, work_list
from kvasir.layers.attention import BlockTable, HeadShape, KVCache, ScoreRule, StepRows
from kvasir.layers.parameter import Placement
from kvasir.layers.rotary import Rotation
from kvasir.layers.step_memory import StepMemory

# Attention programs that a multiprocessor runs at the same time, about.
_PROGRAMS_PER_PROCESSOR: Final = 4
_INTERPRETED_PROGRAMS: Final = 16  # enough to split long contexts


@dataclass(frozen=True)
class TritonPlan:
    kernels: PagedKernels
    tile: AttentionTile
    slots: Tensor  # [T] int32: block * block_size + place in it, where each token's K and V are written
    # By window. None: all tokens, or a window that no context of this step exceeds.
    work: Mapping[int | None, Work]

    def write(self, kv: Tensor, cache: KVCache) -> None:
        scales = cache.scales
        self.kernels.write(self.slots, kv, cache.blocks, k_scale=scales.k, v_scale=scales.v)

    def attend(self, q: Tensor, cache: KVCache, rule: ScoreRule) -> Tensor:
        window = rule.window
        work = self.work.get(window)
        if work is None:
            work, window = self.work[None], None
        return self.kernels.attend(
            work,
            self.tile,
            q,
            cache.blocks,
            scale=rule.scale,
            window=window,
            softcap=rule.softcap,
            sinks=rule.sinks,
            k_scale=cache.scales.k,
            v_scale=cache.scales.v,
        )

    def write_and_attend(
        self, qkv: Tensor, cache: KVCache, rule: ScoreRule, rotation: Rotation | None = None
    ) -> Tensor:
        kv_size = 2 * cache.blocks.shape[2] * cache.blocks.shape[4]
        q, kv = qkv[:, :-kv_size], qkv[:, -kv_size:]
        if rotation is None:
            self.write(kv, cache)
        else:
            self.kernels.rotate_and_write(
                self.slots,
                qkv,
                rotation.cos,
                rotation.sin,
                cache.blocks,
                k_scale=cache.scales.k,
                v_scale=cache.scales.v,
            )
        return self.attend(q, cache, rule)


class TritonPlanner:
    def __init__(
        self,
        table: BlockTable,
        block_size: int,
        heads: HeadShape,
        windows: Set[int | None],
        placement: Placement,
        memory: StepMemory,
        *,
        is_fp8: bool = False,
    ) -> None:
        self._table, self._windows, self._placement, self._memory = table, windows, placement, memory
        self._shape = PagedShape(heads.heads, heads.kv_heads, heads.head_dim, block_size)
        self._kernels = PagedKernels(self._shape)
        self._programs, self._warp_size = _device_facts(placement.device)
        self._tiles = FP8_TILES if is_fp8 else tiles_for(placement.device).attention
        self._padded_partials: Partials | None = None

    def plan(self, step: StepRows) -> TritonPlan:
        is_prefill = bool(step.new.max() > 1)
        tile = self._tile(StepKind.PREFILL if is_prefill else self._decodes_kind(len(step.rows)))
        longest = int((step.computed + step.new).max())
        windows = {None if window is None or window >= longest else window for window in self._windows}
        lists = {window: self._work_list(step, tile, window) for window in windows}
        num_slots = max(work.num_slots for work in lists.values())
        partials = Partials.empty(num_slots, self._shape, tile, self._placement.device)
        return self._placed(step, tile, self._slots(step), lists, partials)

    def plan_padded(self, step: StepRows, size: int) -> TritonPlan:
        tile, shape = self._tile(self._decodes_kind(size)), self._shape
        num_items, num_merges = most_items(size, shape.kv_heads, self._programs)
        lists = {
            window: self._work_list(step, tile, window, padded_to=size).padded(num_items, num_merges)
            for window in self._windows
        }
        slots = np.zeros(size, np.int32)
        slots[: len(step.rows)] = self._slots(step)
        if self._padded_partials is None:  # all sizes share them
            self._padded_partials = Partials.empty(
                2 * (self._programs // shape.kv_heads), shape, tile, self._placement.device
            )
        return self._placed(step, tile, slots, lists, self._padded_partials)

    def _placed(
        self,
        step: StepRows,
        tile: AttentionTile,
        slots: Columns,
        lists: Mapping[int | None, WorkList],
        partials: Partials,
    ) -> TritonPlan:
        memory = self._memory
        longest = int((step.computed + step.new).max(initial=0))
        table = self._table[step.rows, : -(-longest // self._shape.block_size)]  # [B, blocks]
        start = memory.put_table(table)
        works = {
            window: Work(
                tables=memory.tables,
                items=memory.put(work.at_tables(start, table.shape[1])),
                merges=memory.put(work.merges),
                partials=partials,
            )
            for window, work in lists.items()
        }
        return TritonPlan(self._kernels, tile, memory.put(slots), works)

    def _decodes_kind(self, requests: int) -> StepKind:
        return decodes_kind(requests, self._shape.kv_heads, self._programs)

    def _tile(self, kind: StepKind) -> AttentionTile:
        dtype_bytes = self._placement.dtype.itemsize
        return attention_tile(self._shape, dtype_bytes, kind, self._tiles, warp_size=self._warp_size)

    def _slots(self, step: StepRows) -> Columns:
        blocks = self._table[step.token_rows, step.token_blocks]
        slots: Columns = blocks * np.int32(self._shape.block_size) + step.offsets.astype(np.int32)
        return slots

    def _work_list(
        self, step: StepRows, tile: AttentionTile, window: int | None, *, padded_to: int = 0
    ) -> WorkList:
        return work_list(
            step.computed,
            step.new,
            tokens_per_item=tile.tokens(self._shape.group),
            window=window,
            kv_heads=self._shape.kv_heads,
            programs=self._programs,
            padded_to=padded_to,
        )


def _device_facts(device: torch.device) -> tuple[int, int]:
    if device.type != "cuda":
        return _INTERPRETED_PROGRAMS, 32
    properties = torch.cuda.get_device_properties(device)
    return _PROGRAMS_PER_PROCESSOR * properties.multi_processor_count, properties.warp_size
