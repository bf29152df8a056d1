"""The kernel that writes K and V into the paged cache."""

import triton
import triton.language as tl


@triton.jit
def stored(x, inverse_scale, cache):
    # NaN stays NaN, so that a broken request is still detected.
    if cache.dtype.element_ty.is_fp8():
        x = tl.clamp(x.to(tl.float32) * inverse_scale, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return x.to(cache.dtype.element_ty)


@triton.jit(do_not_specialize=["num_tokens"])
def write_kv(
    cache,  # [num_blocks, 2, KV_HEADS, BLOCK_SIZE, HEAD_DIM]
    kv,  # [T, 2 * KV_HEADS * HEAD_DIM], stride kv_stride
    slots,  # [T] int32: block * BLOCK_SIZE + offset
    num_tokens,
    kv_stride,
    k_inverse,  # 1 / scale of an fp8 cache
    v_inverse,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
):  # Grid: (T / TOKENS, 2 * KV_HEADS)
    piece = tl.program_id(1)  # K of each head, then V of each head
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    dims = tl.arange(0, PADDED_DIM)
    exists = tokens < num_tokens
    slot = tl.load(slots + tokens, mask=exists, other=0).to(tl.int64)
    mask = exists[:, None] & (dims < HEAD_DIM)[None, :]
    source = tokens.to(tl.int64) * kv_stride + piece * HEAD_DIM
    block = slot // BLOCK_SIZE * (2 * KV_HEADS) + piece
    place = (block * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM
    numbers = tl.load(kv + source[:, None] + dims[None, :], mask=mask)
    inverse = tl.where(piece < KV_HEADS, k_inverse, v_inverse)
    tl.store(cache + place[:, None] + dims[None, :], stored(numbers, inverse, cache), mask=mask)
