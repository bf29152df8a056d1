"""Launches the adapters' kernels. The host reads nothing from the device, for CUDA graphs."""

import torch
import triton
from torch import Tensor

from kvasir.kernels.triton.adapters.adapter_gemm import expand, shrink
from kvasir.kernels.triton.adapters.adapter_tiling import expand_tile, product_constants, shrink_tile
from kvasir.kernels.triton.experts.expert_kernels import INTERPRETED, Blocks, device_limits, listed_blocks
from kvasir.kernels.triton.experts.expert_tiling import tile_rows
from kvasir.kernels.triton.tiling import OPTIONS


def rows_by_slot(token_slots: Tensor, slots: int, dtype: torch.dtype) -> tuple[Blocks, int]:
    """Return the blocks of a step, and the rows of each. token_slots: [T] int64, -1 without an adapter."""
    rows = tile_rows(len(token_slots), slots, dtype.itemsize)
    return listed_blocks(token_slots[:, None], range(slots), rows), rows


def add_products_(out: Tensor, x: Tensor, down: Tensor, up: Tensor, blocks: Blocks, rows: int) -> None:
    """out [T, outputs] += x [T, inputs] downᵀ upᵀ, with down [slots, ranks, inputs], up [slots, outputs, ranks]."""
    _, ranks, inputs = down.shape
    outputs = up.shape[1]
    limits, exact = device_limits(x.device), x.dtype == torch.float32
    shrunk = torch.empty(len(blocks.places), ranks, dtype=torch.float32, device=x.device)
    tile = shrink_tile(rows, ranks, x.dtype.itemsize, limits)
    common = (blocks.places, blocks.table, blocks.count)
    shrink[len(blocks.table), triton.cdiv(ranks, tile.columns)](
        shrunk,
        x,
        x.stride(0),
        down,
        *common,
        **product_constants(tile, inputs, ranks, exact=exact, interpreted=INTERPRETED),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **OPTIONS,
    )
    tile = expand_tile(rows, ranks, limits)
    expand[len(blocks.table), triton.cdiv(outputs, tile.columns)](
        out,
        out.stride(0),
        shrunk,
        up,
        *common,
        **product_constants(tile, outputs, ranks, exact=exact, interpreted=INTERPRETED),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **OPTIONS,
    )
