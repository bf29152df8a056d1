"""The kernel that normalises rows, optionally after an addition."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def rms_norm(
    out,  # [T, HEADS, SIZE], stride out_stride; may be x
    x,  # [T, HEADS, SIZE], stride x_stride; becomes the sum if ADDS
    added,  # [T, SIZE], stride added_stride
    weight,  # [SIZE]
    rows,  # T * HEADS
    eps,
    shift,
    out_stride,
    x_stride,
    added_stride,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    ADDS: tl.constexpr,
):  # Grid: T * HEADS / ROWS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = (row // HEADS).to(tl.int64)  # [ROWS]
    in_token = (row % HEADS * SIZE)[:, None] + tl.arange(0, PADDED_SIZE)[None, :]
    in_row = tl.arange(0, PADDED_SIZE) < SIZE
    mask = (row < rows)[:, None] & in_row[None, :]
    places = token[:, None] * x_stride + in_token
    numbers = tl.load(x + places, mask=mask, other=0.0).to(tl.float32)  # [ROWS, PADDED_SIZE]
    if ADDS:
        more = tl.load(added + token[:, None] * added_stride + in_token, mask=mask, other=0.0)
        # The next layer adds to the rounded sum.
        total = (numbers + more.to(tl.float32)).to(x.dtype.element_ty)
        tl.store(x + places, total, mask=mask)
        numbers = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(numbers * numbers, 1) / SIZE + eps)  # [ROWS]
    unit = numbers * scale[:, None]
    weights = tl.load(weight + tl.arange(0, PADDED_SIZE), mask=in_row, other=0.0).to(tl.float32)
    # Multiplied out: a weight near 0 keeps all its bits.
    result = unit * weights[None, :] + unit * shift
    tl.store(out + token[:, None] * out_stride + in_token, result.to(out.dtype.element_ty), mask=mask)
