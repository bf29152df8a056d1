"""The kernel that adds up the weighted results of a token's experts, in the order of scores."""

import triton
import triton.language as tl


@triton.jit
def add_weighted(
    total,  # [T, SIZE] float32
    parts,  # [T, TOP_K, SIZE]
    weights,  # [T, TOP_K] float32
    SIZE: tl.constexpr,
    TOP_K: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # Grid: (T, SIZE / COLUMNS)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    exists = column < SIZE
    sums = tl.zeros([COLUMNS], tl.float32)
    for number in tl.static_range(TOP_K):
        row = token * TOP_K + number
        part = tl.load(parts + row * SIZE + column, mask=exists, other=0.0).to(tl.float32)
        sums += part * tl.load(weights + row)
    tl.store(total + token * SIZE + column, sums, mask=exists)
