"""Plans a step's attention for the Triton kernels: slots, block tables and work lists, in a single copy."""

from collections.abc import Sequence, Set
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvasir.kernels.triton.paged_kernels import PagedKernels, Partials, Work
from kvasir.kernels.triton.tiling import AttentionTile, PagedShape, attention_tile
from kvasir.kernels.triton.work_list import WorkList, work_list
from kvasir.layers.attention import BlockTable, HeadShape, StepRows
from kvasir.layers.attention_backends.triton_paged import TritonPlan
from kvasir.layers.parameter import Placement

_PROGRAMS_PER_PROCESSOR: Final = 4
"""Programs of the attention kernel that a multiprocessor runs at the same time, about."""
_INTERPRETED_PROGRAMS: Final = 16
"""Programs that "occupy" the interpreter: few, and enough to split long contexts."""
_ALIGNMENT: Final = 4
"""Numbers of 4 bytes: Triton compiles kernels for addresses that are multiples of 16 bytes."""


class TritonPlanner:
    def __init__(
        self,
        table: BlockTable,
        block_size: int,
        heads: HeadShape,
        windows: Set[int | None],
        placement: Placement,
    ) -> None:
        self._table, self._windows, self._placement = table, windows, placement
        self._shape = PagedShape(heads.heads, heads.kv_heads, heads.head_dim, block_size)
        self._kernels = PagedKernels(self._shape)
        self._programs, self._warp_size = _device_facts(placement.device)

    def plan(self, step: StepRows) -> TritonPlan:
        shape, placement = self._shape, self._placement
        tile = attention_tile(
            shape, placement.dtype.itemsize, prefill=bool(step.new.max() > 1), warp_size=self._warp_size
        )
        longest = int((step.computed + step.new).max())
        windows = {None if window is None or window >= longest else window for window in self._windows}
        lists = {window: self._work_list(step, tile, window) for window in windows}
        blocks = self._table[step.token_rows, step.token_blocks]
        slots = blocks * np.int32(shape.block_size) + step.offsets.astype(np.int32)  # [T]
        table = self._table[step.rows, : -(-longest // shape.block_size)]  # [B, blocks]
        all_items = [work.items for work in lists.values()]
        all_merges = [work.merges for work in lists.values()]
        there_slots, there_table, *there = to_device([slots, table, *all_items, *all_merges], placement.device)
        num_slots = max(work.num_slots for work in lists.values())
        partials = Partials.empty(num_slots, shape, tile, placement.device)
        pairs = zip(there[: len(lists)], there[len(lists) :], strict=True)
        works = [Work(there_table, items, merges, partials) for items, merges in pairs]
        return TritonPlan(self._kernels, tile, there_slots, dict(zip(lists, works, strict=True)))

    def _work_list(self, step: StepRows, tile: AttentionTile, window: int | None) -> WorkList:
        return work_list(
            step.computed,
            step.new,
            tokens_per_item=tile.tokens(self._shape.group),
            window=window,
            kv_heads=self._shape.kv_heads,
            programs=self._programs,
        )


def to_device(arrays: Sequence[npt.NDArray[np.int32]], device: torch.device) -> list[Tensor]:
    """Copy the arrays at once. Return tensors of their shapes, at aligned addresses of one memory."""
    sizes = [-(-array.size // _ALIGNMENT) * _ALIGNMENT for array in arrays]
    memory = np.zeros(sum(sizes), np.int32)
    starts = (np.cumsum(sizes) - sizes).tolist()
    for start, array in zip(starts, arrays, strict=True):
        memory[start : start + array.size] = array.reshape(-1)
    there = torch.from_numpy(memory).to(device, non_blocking=True)
    return [
        there[start : start + array.size].view(array.shape) for start, array in zip(starts, arrays, strict=True)
    ]


def _device_facts(device: torch.device) -> tuple[int, int]:
    """Return the number of programs that occupy the device, and the threads of a warp."""
    if device.type != "cuda":
        return _INTERPRETED_PROGRAMS, 32
    properties = torch.cuda.get_device_properties(device)
    return _PROGRAMS_PER_PROCESSOR * properties.multi_processor_count, properties.warp_size
