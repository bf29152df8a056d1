"""The attention kernel: one launch for all prefills, chunks and decodes of a step.

A program takes one work item (work_list.py) and one KV head, with the online softmax of Milakov and Gimelshein
(2018). Long contexts are split as in Flash-Decoding (Dao et al., 2023).

row of a tile     0  1  2  3 | 4  5  6  7 | …        with 4 query heads for each KV head
query token       0  0  0  0 | 1  1  1  1 | …
"""

import triton
import triton.language as tl


@triton.jit
def _product(a, b, EXACT: tl.constexpr, INTERPRETED: tl.constexpr):
    # Triton's interpreter multiplies the bits of bfloat16 as integers.
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    if EXACT:
        return tl.dot(a, b, input_precision="ieee")
    return tl.dot(a, b)


@triton.jit
def _scores(queries, k, inner_scale, CAPPED: tl.constexpr, EXACT: tl.constexpr, INTERPRETED: tl.constexpr):
    # [ROWS, KEYS]
    scores = _product(queries, k, EXACT, INTERPRETED)
    if CAPPED:
        scores = 1.0 - 2.0 / (tl.exp(scores * inner_scale) + 1.0)  # tanh
    return scores


@triton.jit
def _of_type(x, queries):
    if x.dtype.is_fp8():
        x = x.to(tl.float32)  # sm_89 has no instruction from fp8 to bfloat16
    return x.to(queries.dtype)


@triton.jit
def _added(total, sums, rescale, weights, v, EXACT: tl.constexpr, INTERPRETED: tl.constexpr):
    total = total * rescale + tl.sum(weights, 1)
    if not INTERPRETED:
        weights = weights.to(v.dtype)
    return total, sums * rescale[:, None] + _product(weights, v, EXACT, INTERPRETED)


@triton.jit
def _keys_of(position, num_tokens, segment, segments, window, KEYS: tl.constexpr, WINDOWED: tl.constexpr):
    begin = 0
    if WINDOWED:
        begin = tl.maximum(position - window + 1, 0)
    end = position + num_tokens
    length = tl.cdiv(tl.cdiv(end - begin, segments), KEYS) * KEYS
    begin += segment * length
    return begin, tl.minimum(end, begin + length)


@triton.jit(do_not_specialize=["window"])
def attend_paged(
    out,  # [T, KV_HEADS * GROUP * HEAD_DIM]
    q,  # the same, stride q_stride
    cache,  # [num_blocks, 2, KV_HEADS, BLOCK_SIZE, HEAD_DIM] of q's dtype or float8_e4m3fn
    tables,  # [numbers] int32
    items,  # [N, ITEM_SIZE] int32
    partial_out,  # [slots, KV_HEADS, ROWS, HEAD_DIM] float32, not divided by the sum
    partial_max,  # [slots, KV_HEADS, ROWS] float32
    partial_sum,  # [slots, KV_HEADS, ROWS] float32
    sinks,  # [KV_HEADS * GROUP] float32; unused without SINKS
    inner_scale,  # of a score within the soft cap, times 2
    outer_scale,  # of a score, or of the capped one, times log2(e): exponents are of base 2
    v_scale,  # of an fp8 cache
    window,
    q_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    ITEM_SIZE: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    EXACT: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # Grid: (N, KV_HEADS)
    item = items + tl.program_id(0) * ITEM_SIZE
    kv_head = tl.program_id(1)
    table = tables + tl.load(item)
    first_token = tl.load(item + 1)
    num_tokens = tl.load(item + 2)
    position = tl.load(item + 3)
    segment = tl.load(item + 4)
    segments = tl.load(item + 5)
    slot = tl.load(item + 6).to(tl.int64)

    rows = tl.arange(0, ROWS)
    token = rows // GROUP  # [ROWS]
    head = kv_head * GROUP + rows % GROUP
    dims = tl.arange(0, PADDED_DIM)
    in_head = dims < HEAD_DIM
    exists = token < num_tokens
    mask = exists[:, None] & in_head[None, :]
    places = (first_token + token).to(tl.int64) * q_stride + head * HEAD_DIM
    queries = tl.load(q + places[:, None] + dims[None, :], mask=mask, other=0.0)  # [ROWS, PADDED_DIM]

    last = position + token  # [ROWS] the last key that each row sees
    begin, end = _keys_of(position, num_tokens, segment, segments, window, KEYS, WINDOWED)

    block_numbers = 2 * KV_HEADS * BLOCK_SIZE * HEAD_DIM
    k_head = cache + kv_head * (BLOCK_SIZE * HEAD_DIM)
    v_head = k_head + KV_HEADS * BLOCK_SIZE * HEAD_DIM
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    if SINKS and segment == 0:  # a first score without a value, once for all segments
        maximum = tl.load(sinks + head) * 1.4426950408889634  # log2(e)
        total += 1.0
    # Without a window, all rows see the keys up to the first row's position, so these tiles need no masks.
    # Decodes are memory-bound and do not benefit.
    UNMASKED: tl.constexpr = ROWS >= 64 and not WINDOWED
    masked_from = begin
    if UNMASKED:
        masked_from += tl.maximum(tl.minimum(position + 1, end) - begin, 0) // KEYS * KEYS
    for start in range(begin, masked_from if UNMASKED else begin, KEYS):
        keys = start + tl.arange(0, KEYS)
        block = tl.load(table + keys // BLOCK_SIZE).to(tl.int64)
        place = block * block_numbers + keys % BLOCK_SIZE * HEAD_DIM  # [KEYS]
        if HEAD_DIM == PADDED_DIM:
            k = tl.load(k_head + place[None, :] + dims[:, None])
            v = tl.load(v_head + place[:, None] + dims[None, :])
        else:
            k = tl.load(k_head + place[None, :] + dims[:, None], mask=in_head[:, None], other=0.0)
            v = tl.load(v_head + place[:, None] + dims[None, :], mask=in_head[None, :], other=0.0)
        k, v = _of_type(k, queries), _of_type(v, queries)
        scores = _scores(queries, k, inner_scale, CAPPED, EXACT, INTERPRETED)
        new_maximum = tl.maximum(maximum, tl.max(scores, 1) * outer_scale)
        weights = tl.exp2(scores * outer_scale - new_maximum[:, None])
        rescale = tl.exp2(maximum - new_maximum)
        total, sums = _added(total, sums, rescale, weights, v, EXACT, INTERPRETED)
        maximum = new_maximum
    for start in range(masked_from, end, KEYS):
        keys = start + tl.arange(0, KEYS)
        known = keys < end
        block = tl.load(table + keys // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
        place = block * block_numbers + keys % BLOCK_SIZE * HEAD_DIM
        k = tl.load(k_head + place[None, :] + dims[:, None], mask=known[None, :] & in_head[:, None], other=0.0)
        v = tl.load(v_head + place[:, None] + dims[None, :], mask=known[:, None] & in_head[None, :], other=0.0)
        k, v = _of_type(k, queries), _of_type(v, queries)
        scores = _scores(queries, k, inner_scale, CAPPED, EXACT, INTERPRETED) * outer_scale
        visible = known[None, :] & (keys[None, :] <= last[:, None])
        if WINDOWED:
            visible = visible & (keys[None, :] > last[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        # -inf - -inf of a row without keys so far is NaN.
        finite = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(scores - finite[:, None])
        rescale = tl.exp2(maximum - finite)
        total, sums = _added(total, sums, rescale, weights, v, EXACT, INTERPRETED)
        maximum = new_maximum

    if cache.dtype.element_ty.is_fp8():
        sums *= v_scale
    if segments == 1:
        sums = sums / tl.where(exists, total, 1.0)[:, None]
        places = (first_token + token).to(tl.int64) * (KV_HEADS * GROUP * HEAD_DIM) + head * HEAD_DIM
        tl.store(out + places[:, None] + dims[None, :], sums.to(out.dtype.element_ty), mask=mask)
    else:
        partial = (slot * KV_HEADS + kv_head) * ROWS + rows
        tl.store(partial_out + partial[:, None] * HEAD_DIM + dims[None, :], sums, mask=mask)
        tl.store(partial_max + partial, maximum, mask=exists)
        tl.store(partial_sum + partial, total, mask=exists)
