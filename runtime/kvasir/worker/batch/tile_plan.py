"""Plans a step's attention for the CPU's kernel: tiles of rows that attend to one head of K and V.

Called by the input builder once per step; layers with a sliding window and without follow the same plan.
"""

import numpy as np
import numpy.typing as npt

from kvasir.kernels.cpu import LANES, MOST_NUMBERS, MOST_ROWS, Kernels, PagedStep, kernels_for
from kvasir.layers.attention import HeadShape, TilePlan
from kvasir.layers.parameter import Placement
from kvasir.worker.batch.request_table import RequestTable

Ints = npt.NDArray[np.int64]


def tile_planner(
    table: RequestTable, placement: Placement, block_size: int, heads: HeadShape
) -> "TilePlanner | None":
    """Return None if there is no kernel, or none for these heads."""
    kernels = kernels_for(placement.device, placement.dtype)
    takes = heads.head_dim % LANES == 0 and heads.head_dim <= MOST_NUMBERS and heads.group <= MOST_ROWS
    return TilePlanner(kernels, table, block_size, heads) if kernels is not None and takes else None


class TilePlanner:
    def __init__(self, kernels: Kernels, table: RequestTable, block_size: int, heads: HeadShape) -> None:
        self._kernels = kernels
        self._table = table
        self._block_size = block_size
        self._heads = heads
        self._tokens_per_tile = MOST_ROWS // heads.group

    def plan(self, rows: Ints, computed: Ints, new: Ints, blocks: Ints, offsets: Ints) -> TilePlan:
        """`blocks`, `offsets` [T]: where each token is written."""
        slots = blocks * self._block_size + offsets
        tiles = self._tiles(rows, computed, new)
        table, heads = self._table.block_table, self._heads
        step = PagedStep(
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
        return TilePlan(self._kernels, step, (slots, table, tiles))

    def _tiles(self, rows: Ints, computed: Ints, new: Ints) -> npt.NDArray[np.int32]:
        """[N, 4] row of the table, first token in the step, tokens, position of the first"""
        starts = np.cumsum(new) - new
        counts = -(-new // self._tokens_per_tile)
        request = np.repeat(np.arange(len(rows)), counts)
        before = (np.arange(len(request)) - np.repeat(np.cumsum(counts) - counts, counts)) * self._tokens_per_tile
        tokens = np.minimum(new[request] - before, self._tokens_per_tile)
        columns = (rows[request], starts[request] + before, tokens, computed[request] + before)
        return np.stack(columns, axis=1).astype(np.int32)
