"""The kernel that multiplies one row by a weight.

The norm's factor multiplies the sums of products, so the normalised row is not rounded.
"""

import triton
import triton.language as tl


@triton.jit
def _activated(gate, GELU: tl.constexpr):
    inner = gate
    if GELU:
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # 2 * sqrt(2 / pi)
    return gate / (1.0 + tl.exp(-inner))


@triton.jit
def multiply_row(
    out,  # [T, outputs], stride out_stride
    x,  # [T, inputs], stride x_stride
    weight,  # [outputs, inputs]; if GATED [2 * outputs, inputs], the gate first
    bias,  # [outputs], or [2 * outputs]; read if BIASED
    norm_weight,  # [inputs]; read if NORMED
    outputs,
    inputs,
    eps,
    shift,
    out_stride,
    x_stride,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    NORMED: tl.constexpr,
    GATED: tl.constexpr,
    GELU: tl.constexpr,
    ADDS: tl.constexpr,
    BIASED: tl.constexpr,
    EVEN: tl.constexpr,
    STAGES: tl.constexpr,
):  # Grid: (outputs / OUTPUTS, T)
    row = tl.program_id(1).to(tl.int64)
    places = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    exists = places < outputs
    columns = tl.arange(0, INPUTS)
    # `outputs` has no method `to` where it is 1: Triton makes it a constant.
    weights = weight + places.to(tl.int64)[:, None] * inputs + columns[None, :]
    others = weight + (places.to(tl.int64) + outputs)[:, None] * inputs + columns[None, :]
    total = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    other_total = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    squares = tl.zeros([INPUTS], tl.float32)
    for start in tl.range(0, inputs, INPUTS, num_stages=STAGES):
        if EVEN:
            mask = exists[:, None]
            numbers = tl.load(x + row * x_stride + start + columns).to(tl.float32)
        else:
            in_row = start + columns < inputs
            mask = exists[:, None] & in_row[None, :]
            numbers = tl.load(x + row * x_stride + start + columns, mask=in_row, other=0.0).to(tl.float32)
        part = tl.load(weights + start, mask=mask, other=0.0, eviction_policy="evict_first")
        if GATED:
            other_part = tl.load(others + start, mask=mask, other=0.0, eviction_policy="evict_first")
        if NORMED:
            squares += numbers * numbers
            if EVEN:
                factors = tl.load(norm_weight + start + columns).to(tl.float32)
            else:
                factors = tl.load(norm_weight + start + columns, mask=in_row, other=0.0).to(tl.float32)
            numbers *= factors + shift
        total += part.to(tl.float32) * numbers[None, :]
        if GATED:
            other_total += other_part.to(tl.float32) * numbers[None, :]
    scale = 1.0
    if NORMED:
        scale = tl.rsqrt(tl.sum(squares, 0) / inputs + eps)
    result = tl.sum(total, 1) * scale  # [OUTPUTS]
    if BIASED:
        result += tl.load(bias + places, mask=exists, other=0.0).to(tl.float32)
    if GATED:
        up = tl.sum(other_total, 1) * scale
        if BIASED:
            up += tl.load(bias + outputs + places, mask=exists, other=0.0).to(tl.float32)
        # Both are rounded, like the results of separate kernels.
        gate = result.to(out.dtype.element_ty).to(tl.float32)
        result = _activated(gate, GELU) * up.to(out.dtype.element_ty).to(tl.float32)
    target = out + row * out_stride + places
    if ADDS:
        before = tl.load(target, mask=exists, other=0.0).to(tl.float32)
        result = before + result.to(out.dtype.element_ty).to(tl.float32)
    tl.store(target, result.to(out.dtype.element_ty), mask=exists)
