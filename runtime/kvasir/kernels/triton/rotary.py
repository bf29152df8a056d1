"""The kernel that rotates the queries and keys of a step in place."""

import triton
import triton.language as tl


@triton.jit
def rotate(
    x,  # [T, HEADS, HEAD_DIM], of the stride x_stride between tokens
    cos,  # [T, 2 * HALF], of which the halves are equal
    sin,  # [T, 2 * HALF], of which the first half is the second one negated
    x_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Grid: (T, HEADS / ROWS). A program rotates the first 2 * HALF numbers of some heads of a token."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED_HALF)
    in_half = dims < HALF
    angles = token * (2 * HALF) + dims
    c = tl.load(cos + angles, mask=in_half, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + HALF + angles, mask=in_half, other=0.0).to(tl.float32)[None, :]
    mask = (head < HEADS)[:, None] & in_half[None, :]
    places = token * x_stride + head[:, None] * HEAD_DIM + dims[None, :]
    first = tl.load(x + places, mask=mask, other=0.0).to(tl.float32)  # [ROWS, PADDED_HALF]
    second = tl.load(x + HALF + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(x + places, (first * c - second * s).to(x.dtype.element_ty), mask=mask)
    tl.store(x + HALF + places, (second * c + first * s).to(x.dtype.element_ty), mask=mask)
