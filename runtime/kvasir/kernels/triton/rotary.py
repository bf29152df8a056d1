"""Kernels that rotate queries and keys in place, or write rotated keys into the cache."""

import triton
import triton.language as tl

from kvasir.kernels.triton.kv_write import stored


@triton.jit
def rotate(
    x,  # [T, HEADS, HEAD_DIM], stride x_stride
    cos,  # [T, 2 * HALF], two equal halves
    sin,  # [T, 2 * HALF], the first half negated
    x_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    ROWS: tl.constexpr,
):  # Grid: (T, HEADS / ROWS)
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


@triton.jit(do_not_specialize=["num_tokens"])
def rotate_and_write(
    cache,  # [num_blocks, 2, KV_HEADS, BLOCK_SIZE, HEAD_DIM]
    qkv,  # [T, (HEADS + 2 * KV_HEADS) * HEAD_DIM], stride qkv_stride
    cos,  # as above
    sin,
    slots,  # [T] int32
    num_tokens,
    qkv_stride,
    k_inverse,  # 1 / scale of an fp8 cache
    v_inverse,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    HALF: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
):
    # Grid: (T / TOKENS, HEADS + 2 * KV_HEADS)
    piece = tl.program_id(1)
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    exists = tokens < num_tokens
    source = qkv + tokens.to(tl.int64) * qkv_stride + piece * HEAD_DIM  # [TOKENS]
    slot = tl.load(slots + tokens, mask=exists, other=0).to(tl.int64)
    block = slot // BLOCK_SIZE * (2 * KV_HEADS) + (piece - HEADS)
    target = cache + (block * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM  # [TOKENS] of keys and values
    inverse = tl.where(piece < HEADS + KV_HEADS, k_inverse, v_inverse)
    if piece < HEADS + KV_HEADS:
        dims = tl.arange(0, PADDED_HALF)
        mask = exists[:, None] & (dims < HALF)[None, :]
        angles = tokens.to(tl.int64)[:, None] * (2 * HALF) + dims[None, :]
        c = tl.load(cos + angles, mask=mask, other=0.0).to(tl.float32)
        s = tl.load(sin + HALF + angles, mask=mask, other=0.0).to(tl.float32)
        first = tl.load(source[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
        second = tl.load(source[:, None] + (HALF + dims)[None, :], mask=mask, other=0.0).to(tl.float32)
        low = first * c - second * s
        high = second * c + first * s
        if piece < HEADS:
            tl.store(source[:, None] + dims[None, :], low.to(qkv.dtype.element_ty), mask=mask)
            tl.store(source[:, None] + (HALF + dims)[None, :], high.to(qkv.dtype.element_ty), mask=mask)
        else:
            tl.store(target[:, None] + dims[None, :], stored(low, inverse, cache), mask=mask)
            tl.store(target[:, None] + (HALF + dims)[None, :], stored(high, inverse, cache), mask=mask)
    if piece >= HEADS:
        begin = tl.where(piece < HEADS + KV_HEADS, 2 * HALF, 0)  # of unrotated numbers
        dims = tl.arange(0, PADDED_DIM)
        copied = exists[:, None] & ((dims >= begin) & (dims < HEAD_DIM))[None, :]
        numbers = tl.load(source[:, None] + dims[None, :], mask=copied)
        tl.store(target[:, None] + dims[None, :], stored(numbers, inverse, cache), mask=copied)
