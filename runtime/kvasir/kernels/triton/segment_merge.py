"""The kernel that merges the partial results of an item's segments."""

import triton
import triton.language as tl


@triton.jit
def merge_segments(
    out,  # [T, KV_HEADS * GROUP * HEAD_DIM]
    partial_out,  # see paged_attention.py
    partial_max,
    partial_sum,
    merges,  # [M, MERGE_SIZE] int32
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    MERGED_ROWS: tl.constexpr,
    MERGE_SIZE: tl.constexpr,
):
    # Grid: (M, KV_HEADS, ROWS / MERGED_ROWS). If a segment has no key for a row, the maximum is -inf and the sum 0.
    merge = merges + tl.program_id(0) * MERGE_SIZE
    kv_head = tl.program_id(1)
    first_slot = tl.load(merge).to(tl.int64)
    segments = tl.load(merge + 1)
    first_token = tl.load(merge + 2)
    num_tokens = tl.load(merge + 3)
    rows = tl.program_id(2) * MERGED_ROWS + tl.arange(0, MERGED_ROWS)
    token = rows // GROUP
    dims = tl.arange(0, PADDED_DIM)
    exists = token < num_tokens
    mask = exists[:, None] & (dims < HEAD_DIM)[None, :]
    maximum = tl.full([MERGED_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([MERGED_ROWS], tl.float32)
    sums = tl.zeros([MERGED_ROWS, PADDED_DIM], tl.float32)
    for segment in range(segments):
        partial = ((first_slot + segment) * KV_HEADS + kv_head) * ROWS + rows
        other_maximum = tl.load(partial_max + partial, mask=exists, other=float("-inf"))
        other_total = tl.load(partial_sum + partial, mask=exists, other=0.0)
        other_sums = tl.load(partial_out + partial[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
        new_maximum = tl.maximum(maximum, other_maximum)
        finite = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        rescale = tl.exp2(maximum - finite)
        other_rescale = tl.exp2(other_maximum - finite)
        total = total * rescale + other_total * other_rescale
        sums = sums * rescale[:, None] + other_sums * other_rescale[:, None]
        maximum = new_maximum
    sums = sums / tl.where(exists, total, 1.0)[:, None]
    head = kv_head * GROUP + rows % GROUP
    places = (first_token + token).to(tl.int64) * (KV_HEADS * GROUP * HEAD_DIM) + head * HEAD_DIM
    tl.store(out + places[:, None] + dims[None, :], sums.to(out.dtype.element_ty), mask=mask)
