"""Plans a step's attention in plain torch: writes, blocks to read and masks, by window.

| decodes, by length of context | whole prompts, by length | chunks of longer prompts |
└── DecodeGroup ──┘ └─ ... ─┘   └ PrefillChunk ┘ └ ... ┘   └ PrefillChunk ┘ └ ... ┘
"""

from collections.abc import Iterator, Set

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvasir.layers.attention import BlockTable, HeadShape, Ints, KVCache, StepRows, head_major_cache
from kvasir.layers.attention_backends.gather import DecodeGroup, GatheredReads, GatherPlan, PrefillChunk
from kvasir.layers.kv import BlockShape, KVSpec
from kvasir.layers.parameter import Placement
from kvasir.layers.step_memory import StepMemory, copied

# A decode group fits the CPU's caches; on a GPU each group costs a launch.
CPU_GATHER_BYTES = 5 * 2**20
GPU_GATHER_BYTES = 256 * 2**20
# A long chunk and context have billions of query-key pairs.
_MASK_NUMBERS = 2**24
_EVERYTHING = 2**40
# The longest context of a decode group relative to the shortest.
_PADDING_SHARE = 1.25


class GatherBackend:
    name = "torch"

    def supports(self, spec: KVSpec, heads: HeadShape, placement: Placement) -> bool:
        return not spec.block.is_fp8

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
    ) -> "GatherPlanner":
        return GatherPlanner(table, spec.block.block_size, heads, windows, placement)


class GatherPlanner:
    def __init__(
        self,
        table: BlockTable,
        block_size: int,
        heads: HeadShape,
        windows: Set[int | None],
        placement: Placement,
    ) -> None:
        self._table, self._block_size, self._heads = table, block_size, heads
        self._windows, self._placement = windows, placement
        gather_bytes = CPU_GATHER_BYTES if placement.device.type == "cpu" else GPU_GATHER_BYTES
        self._gather_blocks = gather_bytes // (block_size * heads.kv_bytes(placement.dtype))
        # [2, 1, kv_heads, 1] rows of KVCache.by_head within a block
        self._places = np.arange(2 * heads.kv_heads).reshape(2, 1, heads.kv_heads, 1)

    def plan(self, step: StepRows) -> GatherPlan:
        rows, computed, new = step.rows, step.computed, step.new
        longest = int((computed + new).max())
        windows = {None if window is None or window >= longest else window for window in self._windows}
        return GatherPlan(
            heads=self._heads,
            blocks=self._tensor(self._table[step.token_rows, step.token_blocks].astype(np.int64)),
            offsets=self._tensor(step.offsets),
            begun=self._begun(rows, computed, new),
            reads={window: self._reads(rows, computed, new, window) for window in windows},
        )

    def _reads(self, rows: Ints, computed: Ints, new: Ints, window: int | None) -> GatheredReads:
        decodes = int(np.count_nonzero(new == 1))
        return GatheredReads(
            decode=tuple(self._decode_groups(rows[:decodes], computed[:decodes] + 1, window)),
            prefill=tuple(self._prefill_chunks(rows, computed, new, decodes, window)),
        )

    def _begun(self, rows: Ints, computed: Ints, new: Ints) -> Tensor | None:
        ends = computed + new
        last = ends // self._block_size
        begun = (last * self._block_size >= computed) & (ends % self._block_size > 0)
        if not begun.any():
            return None
        return self._tensor(self._table[rows[begun], last[begun]].astype(np.int64))

    def _decode_groups(self, rows: Ints, lengths: Ints, window: int | None) -> Iterator[DecodeGroup]:
        blocks = -(-lengths // self._block_size)
        firsts = np.maximum(0, lengths - (window or _EVERYTHING)) // self._block_size
        # An upper bound: by its alignment, a window may touch one block less.
        widths = blocks if window is None else np.minimum(blocks, (window - 2) // self._block_size + 2)
        start = 0
        while start < len(rows):
            sizes = np.arange(1, len(rows) - start + 1) * widths[start:]
            fits = int(np.searchsorted(sizes, self._gather_blocks, side="right"))
            alike = int(np.searchsorted(widths[start:], widths[start] * _PADDING_SHARE + 1, side="right"))
            end = start + max(1, min(fits, alike))
            first = firsts[start:end]
            width = int((blocks[start:end] - first).max())
            own = self._blocks(rows[start:end], first, blocks[start:end] - 1, width)
            yield DecodeGroup(
                tokens=slice(start, end),
                pieces=self._pieces(own),
                mask=self._decode_mask(lengths[start:end], first, width, window),
            )
            start = end

    def _blocks(self, rows: Ints, first: Ints, last: Ints, width: int) -> npt.NDArray[np.int32]:
        # [rows, width], padded with own blocks: 0 times a NaN of another request is NaN.
        places = np.minimum(first[:, None] + np.arange(width), last[:, None])
        blocks: npt.NDArray[np.int32] = self._table[rows[:, None], places]
        return blocks

    def _pieces(self, blocks: npt.NDArray[np.int32]) -> Tensor:
        # [rows, width] → [2 * kv_heads * rows * width]
        pieces = blocks.astype(np.int64)[:, None] * self._places.size + self._places
        return self._tensor(pieces.reshape(-1))

    def _decode_mask(self, lengths: Ints, first: Ints, width: int, window: int | None) -> Tensor | None:
        # [rows, 1, 1, width * block_size]
        if window is None and lengths[0] == width * self._block_size:  # all fill their blocks
            return None
        positions = first[:, None] * self._block_size + np.arange(width * self._block_size)
        hidden = positions >= lengths[:, None]
        if window is not None:
            hidden |= positions < lengths[:, None] - window
        return self._tensor(np.where(hidden, np.float32(-np.inf), np.float32(0)))[:, None, None]

    def _prefill_chunks(
        self, rows: Ints, computed: Ints, new: Ints, decodes: int, window: int | None
    ) -> Iterator[PrefillChunk]:
        befores, sizes = computed[decodes:].tolist(), new[decodes:].tolist()
        start, index = decodes, 0
        while index < len(sizes):
            before, size = befores[index], sizes[index]
            first = 0 if window is None else max(0, before - window + 1) // self._block_size
            known = before - first * self._block_size  # earlier tokens
            length = known + size
            banded = window is not None and length > window
            requests = 1 if before or banded else _repeats(befores, sizes, index)
            row = rows[decodes + index : decodes + index + 1]
            width = -(-length // self._block_size)
            blocks = self._blocks(row, np.array([first]), np.array([first + width - 1]), width)
            yield PrefillChunk(
                tokens=slice(start, start + requests * size),
                requests=requests,
                pieces=self._pieces(blocks) if before else None,
                mask=self._chunk_mask(known, size, window) if before or banded else None,
                length=length,
            )
            start += requests * size
            index += requests

    def _chunk_mask(self, known: int, size: int, window: int | None) -> Tensor:
        # [queries, known + size], only for the last queries
        length = known + size
        queries = max(1, min(size, _MASK_NUMBERS // length))
        first = length - queries  # the first query's index among the keys
        mask = torch.full((queries, length), -torch.inf, dtype=self._placement.dtype, device=self._placement.device)
        after = mask.triu(first + 1)
        return after if window is None else after.add_(mask.tril_(first - window))

    def _tensor(self, values: npt.NDArray[np.generic]) -> Tensor:
        return copied(values, self._placement.device)


def _repeats(befores: list[int], sizes: list[int], index: int) -> int:
    end = index + 1
    while end < len(sizes) and sizes[end] == sizes[index] and not befores[end]:
        end += 1
    return end - index
