"""Kernels that multiply blocks of rows by the weights of their expert (expert_blocks.py).

All tiles add products of DEPTH inputs in float32 in the same order.
"""

import triton
import triton.language as tl

from kvasir.kernels.triton.add_product import add_product
from kvasir.kernels.triton.experts.expert_blocks import rows_of_block


@triton.jit
def _rounded(x, DTYPE: tl.constexpr, INTERPRETED: tl.constexpr):
    # Triton's interpreter would truncate to bfloat16.
    if INTERPRETED and DTYPE is tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
        return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
    return x.to(DTYPE).to(tl.float32)


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):  # names of layers/activation.py
    if ACTIVATION == "silu":
        x = x / (1.0 + tl.exp(-x))
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_pytorch_tanh":  # (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u))
        x = x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    else:
        tl.static_assert(ACTIVATION == "relu")
        x = tl.where(x < 0.0, 0.0, x)  # NaN stays
    return x


@triton.jit
def _clamped(gate, up, ALPHA: tl.constexpr, LIMIT: tl.constexpr):
    # ClampedSwiGLU of layers/activation.py. NaN stays.
    gate = tl.where(gate > LIMIT, LIMIT, gate)
    up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
    return gate / (1.0 + tl.exp(-ALPHA * gate)) * (up + 1.0)


@triton.jit
def multiply_gate_up(
    inner,  # [num_rows, INNER], in the order of `places`
    x,  # [T, SIZE]
    weight,  # [experts, 2 * INNER, SIZE]: gates first
    bias,  # [experts, 2 * INNER]; unused without BIASED
    places,  # as in expert_blocks.py
    blocks,
    num_blocks,
    SIZE: tl.constexpr,
    INNER: tl.constexpr,
    TOP_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK_NUMBERS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EXACT: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    # Grid: (most blocks, INNER / COLUMNS). Rounds like layers/activation.py.
    if tl.program_id(0) >= tl.load(num_blocks):
        return
    expert, row, exists = rows_of_block(blocks, BLOCK_NUMBERS, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    token = (tl.load(places + row, mask=exists, other=0) // TOP_K).to(tl.int64)
    # Columns after the last repeat the first, and are not stored.
    gate_row = (expert * (2 * INNER) + column % INNER) * SIZE
    x_places = x + token[:, None] * SIZE + depth[None, :]  # [ROWS, DEPTH]
    gate_places = weight + gate_row[None, :] + depth[:, None]  # [DEPTH, COLUMNS]
    up_places = gate_places + INNER * SIZE
    gate = tl.zeros([ROWS, COLUMNS], tl.float32)
    up = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, SIZE, DEPTH):
        if SIZE % DEPTH == 0:
            numbers = tl.load(x_places + start, mask=exists[:, None], other=0.0)
            gate_weights = tl.load(gate_places + start)
            up_weights = tl.load(up_places + start)
        else:
            known = start + depth < SIZE
            numbers = tl.load(x_places + start, mask=exists[:, None] & known[None, :], other=0.0)
            gate_weights = tl.load(gate_places + start, mask=known[:, None], other=0.0)
            up_weights = tl.load(up_places + start, mask=known[:, None], other=0.0)
        gate = add_product(gate, numbers, gate_weights, EXACT, INTERPRETED)
        up = add_product(up, numbers, up_weights, EXACT, INTERPRETED)
    if BIASED:
        biases = bias + expert * (2 * INNER) + column % INNER
        gate += tl.load(biases).to(tl.float32)[None, :]
        up += tl.load(biases + INNER).to(tl.float32)[None, :]
    dtype: tl.constexpr = inner.dtype.element_ty
    gate, up = _rounded(gate, dtype, INTERPRETED), _rounded(up, dtype, INTERPRETED)
    if ACTIVATION == "clamped":
        result = _clamped(gate, up, ALPHA, LIMIT)
    else:
        result = _rounded(_activated(gate, ACTIVATION), dtype, INTERPRETED) * up
    result = _rounded(result, dtype, INTERPRETED).to(dtype)
    target = inner + row.to(tl.int64)[:, None] * INNER + column[None, :]
    tl.store(target, result, mask=exists[:, None] & (column < INNER)[None, :])


@triton.jit
def multiply_down(
    out,  # [num_rows, SIZE], in the order of the tokens
    inner,  # [num_rows, INNER], in the order of `places`
    weight,  # [experts, SIZE, INNER]
    bias,  # [experts, SIZE]; unused without BIASED
    places,  # as in expert_blocks.py
    blocks,
    num_blocks,
    SIZE: tl.constexpr,
    INNER: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK_NUMBERS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EXACT: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # Grid: (most blocks, SIZE / COLUMNS)
    if tl.program_id(0) >= tl.load(num_blocks):
        return
    expert, row, exists = rows_of_block(blocks, BLOCK_NUMBERS, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    weight_row = (expert * SIZE + column % SIZE) * INNER
    inner_places = inner + row.to(tl.int64)[:, None] * INNER + depth[None, :]  # [ROWS, DEPTH]
    weight_places = weight + weight_row[None, :] + depth[:, None]  # [DEPTH, COLUMNS]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, INNER, DEPTH):
        if INNER % DEPTH == 0:
            numbers = tl.load(inner_places + start, mask=exists[:, None], other=0.0)
            weights = tl.load(weight_places + start)
        else:
            known = start + depth < INNER
            numbers = tl.load(inner_places + start, mask=exists[:, None] & known[None, :], other=0.0)
            weights = tl.load(weight_places + start, mask=known[:, None], other=0.0)
        sums = add_product(sums, numbers, weights, EXACT, INTERPRETED)
    if BIASED:
        sums += tl.load(bias + expert * SIZE + column % SIZE).to(tl.float32)[None, :]
    dtype: tl.constexpr = out.dtype.element_ty
    place = tl.load(places + row, mask=exists, other=0).to(tl.int64)
    target = out + place[:, None] * SIZE + column[None, :]
    numbers = _rounded(sums, dtype, INTERPRETED).to(dtype)
    tl.store(target, numbers, mask=exists[:, None] & (column < SIZE)[None, :])
