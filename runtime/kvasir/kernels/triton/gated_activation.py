"""The kernel that multiplies the activation of a gate by the other half of its row."""

import triton
import triton.language as tl


@triton.jit
def gated_activation(
    out,  # [T, SIZE]
    x,  # [T, 2 * SIZE], stride x_stride: the gate, then the other half
    x_stride,
    SIZE: tl.constexpr,
    NUMBERS: tl.constexpr,
    GELU: tl.constexpr,
):  # Grid: (T, SIZE / NUMBERS)
    token = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    mask = places < SIZE
    row = x + token * x_stride
    gate = tl.load(row + places, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(row + SIZE + places, mask=mask, other=0.0).to(tl.float32)
    inner = gate
    if GELU:  # by tanh: g * (1 + tanh(u)) / 2 = g * sigmoid(2 * u)
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # 2 * sqrt(2 / pi)
    result = gate / (1.0 + tl.exp(-inner)) * up
    tl.store(out + token * SIZE + places, result.to(out.dtype.element_ty), mask=mask)
