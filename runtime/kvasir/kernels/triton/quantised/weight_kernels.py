"""Kernels that multiply by quantised weights, or write them as floats."""

import triton
import triton.language as tl

from kvasir.kernels.triton.add_product import add_product
from kvasir.kernels.triton.quantised.dequantise import half_steps


@triton.jit
def _scales_left(scales, output, exists, KIND: tl.constexpr, PER_OUTPUT: tl.constexpr):
    # The scales [OUTPUTS] that half_steps did not apply.
    if PER_OUTPUT and KIND != "int4":
        return tl.load(scales + output, mask=exists, other=0.0)
    return tl.full(output.shape, 1.0, tl.float32)


@triton.jit
def multiply_one_row(
    out,  # [outputs]
    x,  # [INPUTS]
    numbers,
    scales,
    zeros,
    table,
    outputs,
    KIND: tl.constexpr,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    PER_OUTPUT: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STAGES: tl.constexpr,
):  # Grid: (outputs / OUTPUTS,)
    output = (tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)).to(tl.int64)
    exists = output < outputs
    place = tl.arange(0, HALF)
    sums = tl.zeros([OUTPUTS, HALF], tl.float32)
    for start in tl.range(0, INPUTS, 2 * HALF, num_stages=STAGES):
        low, high = half_steps(
            numbers, scales, zeros, table, output, exists, start, KIND, INPUTS, GROUP, HALF, PER_OUTPUT
        )
        sums += low * tl.load(x + start + place).to(tl.float32)[None, :]
        sums += high * tl.load(x + start + HALF + place).to(tl.float32)[None, :]
    result = tl.sum(sums, 1) * _scales_left(scales, output, exists, KIND, PER_OUTPUT)
    tl.store(out + output, result.to(out.dtype.element_ty), mask=exists)


@triton.jit
def _add_half(sums, x, values, EXACT: tl.constexpr, INTERPRETED: tl.constexpr):
    # sums [ROWS, OUTPUTS] += x [ROWS, HALF] valuesᵀ
    # Triton's interpreter would truncate to bfloat16.
    weights = values if INTERPRETED else values.to(x.dtype)
    return add_product(sums, x, tl.trans(weights), EXACT, INTERPRETED)


@triton.jit
def multiply_few_rows(
    out,  # [rows, outputs]
    x,  # [rows, INPUTS]
    numbers,
    scales,
    zeros,
    table,
    rows,
    outputs,
    KIND: tl.constexpr,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    PER_OUTPUT: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    EXACT: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # Grid: (outputs / OUTPUTS, rows / ROWS)
    output = (tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)).to(tl.int64)
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    exists, in_batch = output < outputs, row < rows
    x_places = x + row[:, None] * INPUTS + tl.arange(0, HALF)[None, :]
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, INPUTS, 2 * HALF):
        low, high = half_steps(
            numbers, scales, zeros, table, output, exists, start, KIND, INPUTS, GROUP, HALF, PER_OUTPUT
        )
        sums = _add_half(
            sums, tl.load(x_places + start, mask=in_batch[:, None], other=0.0), low, EXACT, INTERPRETED
        )
        sums = _add_half(
            sums, tl.load(x_places + start + HALF, mask=in_batch[:, None], other=0.0), high, EXACT, INTERPRETED
        )
    sums *= _scales_left(scales, output, exists, KIND, PER_OUTPUT)[None, :]
    target = out + row[:, None] * outputs + output[None, :]
    tl.store(target, sums.to(out.dtype.element_ty), mask=in_batch[:, None] & exists[None, :])


@triton.jit
def write_floats(
    out,  # [outputs, INPUTS]
    numbers,
    scales,
    zeros,
    table,
    outputs,
    KIND: tl.constexpr,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    PER_OUTPUT: tl.constexpr,
    OUTPUTS: tl.constexpr,
):  # Grid: (outputs / OUTPUTS, INPUTS / (2 * HALF))
    output = (tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)).to(tl.int64)
    exists = output < outputs
    start = tl.program_id(1) * (2 * HALF)
    low, high = half_steps(
        numbers, scales, zeros, table, output, exists, start, KIND, INPUTS, GROUP, HALF, PER_OUTPUT
    )
    left = _scales_left(scales, output, exists, KIND, PER_OUTPUT)[:, None]
    target = out + output[:, None] * INPUTS + start + tl.arange(0, HALF)[None, :]
    tl.store(target, (low * left).to(out.dtype.element_ty), mask=exists[:, None])
    tl.store(target + HALF, (high * left).to(out.dtype.element_ty), mask=exists[:, None])
