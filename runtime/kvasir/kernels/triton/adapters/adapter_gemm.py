"""Kernels that multiply blocks of rows by the matrices of their slot (experts/expert_blocks.py).

Rows without an adapter are in no block: nothing is read or written for them.
"""

import triton
import triton.language as tl

from kvasir.kernels.triton.add_product import add_product
from kvasir.kernels.triton.experts.expert_blocks import rows_of_block


@triton.jit
def shrink(
    shrunk,  # [num_rows, RANKS] float32, in the order of `places`
    x,  # [T, SIZE], any row stride
    x_stride,
    down,  # [slots, RANKS, SIZE]
    places,  # as in expert_blocks.py
    blocks,
    num_blocks,
    SIZE: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCK_NUMBERS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EXACT: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # Grid: (most blocks, RANKS / COLUMNS)
    if tl.program_id(0) >= tl.load(num_blocks):
        return
    slot, row, exists = rows_of_block(blocks, BLOCK_NUMBERS, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    token = tl.load(places + row, mask=exists, other=0).to(tl.int64)
    x_places = x + token[:, None] * x_stride + depth[None, :]  # [ROWS, DEPTH]
    # Columns after the last repeat the first, and are not stored.
    down_places = down + (slot * RANKS + column % RANKS)[None, :] * SIZE + depth[:, None]  # [DEPTH, COLUMNS]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, SIZE, DEPTH):
        known = start + depth < SIZE
        numbers = tl.load(x_places + start, mask=exists[:, None] & known[None, :], other=0.0)
        weights = tl.load(down_places + start, mask=known[:, None], other=0.0)
        sums = add_product(sums, numbers, weights, EXACT, INTERPRETED)
    target = shrunk + row.to(tl.int64)[:, None] * RANKS + column[None, :]
    tl.store(target, sums, mask=exists[:, None] & (column < RANKS)[None, :])


@triton.jit
def expand(
    out,  # [T, SIZE], any row stride: the products are added
    out_stride,
    shrunk,  # [num_rows, RANKS] float32, in the order of `places`
    up,  # [slots, SIZE, RANKS]
    places,  # as in expert_blocks.py
    blocks,
    num_blocks,
    SIZE: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCK_NUMBERS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EXACT: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # Grid: (most blocks, SIZE / COLUMNS)
    if tl.program_id(0) >= tl.load(num_blocks):
        return
    slot, row, exists = rows_of_block(blocks, BLOCK_NUMBERS, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    shrunk_places = shrunk + row.to(tl.int64)[:, None] * RANKS + depth[None, :]  # [ROWS, DEPTH]
    up_places = up + (slot * SIZE + column % SIZE)[None, :] * RANKS + depth[:, None]  # [DEPTH, COLUMNS]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, RANKS, DEPTH):
        known = start + depth < RANKS
        numbers = tl.load(shrunk_places + start, mask=exists[:, None] & known[None, :], other=0.0)
        weights = tl.load(up_places + start, mask=known[:, None], other=0.0)
        if not INTERPRETED:
            numbers = numbers.to(weights.dtype)
        sums = add_product(sums, numbers, weights, EXACT, INTERPRETED)
    token = tl.load(places + row, mask=exists, other=0).to(tl.int64)
    target = out + token[:, None] * out_stride + column[None, :]
    stored = exists[:, None] & (column < SIZE)[None, :]
    total = tl.load(target, mask=stored, other=0.0).to(tl.float32) + sums
    tl.store(target, total.to(out.dtype.element_ty), mask=stored)
