"""Kernels for min-p, top-k and top-p without sorting (docs/design/triton-sampling.md).

The limits of a row are a key (float_order.py) and a token id. Tokens pass with

    key(token) > limit key,   or   key(token) == limit key and token id <= limit id
"""

import triton
import triton.language as tl

from kvasir.kernels.triton.sampling.float_order import (
    INFINITY_KEY,
    MINUS_INFINITY_KEY,
    NAN_KEY,
    NO_KEY,
    key_of,
    number_of,
)

# Relative probabilities are added as integers, so that their order does not matter.
UNITS = tl.constexpr(2.0**40)
ALL = tl.constexpr(0x7FFFFFFF)  # an id limit that all tokens pass


@triton.jit(do_not_specialize=["vocab"])
def scale_rows(
    scaled,  # [N, V] float32: out, if STORED
    largest,  # [N, parts] int32: out
    logits,  # [R, V] of any floating type
    rows,  # [N] int64
    temperature,  # [N] float32
    vocab,
    stride,
    scaled_stride,
    PART_TOKENS: tl.constexpr,
    STORED: tl.constexpr,
):  # Grid: (N, parts)
    place = tl.program_id(0)
    part = tl.program_id(1)
    ids = part * PART_TOKENS + tl.arange(0, PART_TOKENS)
    exists = ids < vocab
    x = tl.load(logits + tl.load(rows + place) * stride + ids, mask=exists, other=0.0).to(tl.float32)
    x = tl.div_rn(x, tl.load(temperature + place))
    if STORED:
        tl.store(scaled + place.to(tl.int64) * scaled_stride + ids, x, mask=exists)
    key = tl.where(exists, key_of(x), NO_KEY)
    tl.store(largest + place.to(tl.int64) * tl.num_programs(1) + part, tl.max(key, 0))


@triton.jit
def _weight(key, maximum):
    return (tl.exp(number_of(key) - maximum) * UNITS).to(tl.int64)


@triton.jit
def _above(numbers, bound, maximum, vocab, TOKENS: tl.constexpr, WEIGHS: tl.constexpr):
    # Returns the number or weight of keys >= bound, the least of them, and the largest key below.
    places = tl.arange(0, TOKENS)
    amount = tl.zeros([TOKENS], tl.int64 if WEIGHS else tl.int32)
    least_above = tl.full([TOKENS], NAN_KEY, tl.int32)
    most_below = tl.full([TOKENS], NO_KEY, tl.int32)
    for start in range(0, vocab, TOKENS):
        exists = start + places < vocab
        key = key_of(tl.load(numbers + start + places, mask=exists, other=0.0))
        above = exists & (key >= bound)
        if WEIGHS:
            amount += tl.where(above, _weight(key, maximum), 0)
        else:
            amount += above.to(tl.int32)
        least_above = tl.minimum(least_above, tl.where(above, key, NAN_KEY))
        most_below = tl.maximum(most_below, tl.where(exists & (key < bound), key, NO_KEY))
    return tl.sum(amount, 0), tl.min(least_above, 0).to(tl.int64), tl.max(most_below, 0).to(tl.int64)


@triton.jit
def _id_of_tie(numbers, tied_key, ties, vocab, TOKENS: tl.constexpr):
    places = tl.arange(0, TOKENS)
    before = tl.full((), 0, tl.int32)
    last = tl.full((), 0, tl.int32)
    for start in range(0, vocab, TOKENS):
        exists = start + places < vocab
        key = key_of(tl.load(numbers + start + places, mask=exists, other=0.0))
        tied = (exists & (key == tied_key)).to(tl.int32)
        numbered = before + tl.cumsum(tied, 0)  # 1 for the first
        within = (tied != 0) & (numbered <= ties)
        last = tl.maximum(last, tl.max(tl.where(within, start + places, 0), 0))
        before += tl.sum(tied, 0)
    return last


@triton.jit
def _most_likely(numbers, floor, largest, k, p, vocab, TOKENS: tl.constexpr):
    # Bisects the keys from `floor` to `largest`, which is finite, in at most 33 passes.
    maximum = number_of(largest)
    count, low, most_below = _above(numbers, floor, maximum, vocab, TOKENS, False)
    # Invariant: `count` keys are >= low; `above` keys, fewer than k, are >= high.
    high = largest.to(tl.int64) + 1
    above = tl.full((), 0, tl.int32)
    while (count > k) & (high - low > 1):
        middle = low + ((high - low) >> 1)
        found, least_above, most_below = _above(numbers, middle.to(tl.int32), maximum, vocab, TOKENS, False)
        if found >= k:
            count = found
            low = least_above
        else:
            above = found
            high = most_below + 1
    is_tied = count > k  # k - above tokens with the key `low` pass
    ties = k - above
    if p < 1.0:
        edge = tl.where(is_tied, low + 1, low)
        total, least_above, most_below = _above(numbers, edge.to(tl.int32), maximum, vocab, TOKENS, True)
        if is_tied:
            total += ties * _weight(low.to(tl.int32), maximum)
        share = p * total.to(tl.float64)
        needed = share.to(tl.int64)
        needed = tl.minimum(tl.where(needed.to(tl.float64) < share, needed + 1, needed), total)
        # Invariant: keys >= low weigh at least `needed`; keys >= high weigh less (`heavier`).
        high = largest.to(tl.int64) + 1
        heavier = tl.full((), 0, tl.int64)
        while high - low > 1:
            middle = low + ((high - low) >> 1)
            weight, least_above, most_below = _above(numbers, middle.to(tl.int32), maximum, vocab, TOKENS, True)
            if weight >= needed:
                low = least_above
            else:
                heavier = weight
                high = most_below + 1
        weight = tl.maximum(_weight(low.to(tl.int32), maximum), 1)
        ties = tl.cdiv(needed - heavier, weight).to(tl.int32)
        is_tied = ties > 0
    last = tl.full((), ALL, tl.int32)
    if is_tied:
        last = _id_of_tie(numbers, low.to(tl.int32), ties, vocab, TOKENS)
    return low.to(tl.int32), last


@triton.jit(do_not_specialize=["vocab", "parts"])
def find_limits(
    limit_keys,  # [N] int32: out
    limit_ids,  # [N] int32: out
    scaled,  # [N, V] float32: FILTERED
    largest,  # [N, parts] int32
    log_min_p,  # [N] float32: FLOORED
    top_k,  # [N] int64: FILTERED
    top_p,  # [N] float64, infinite where off: FILTERED
    vocab,
    scaled_stride,
    parts,
    PADDED_PARTS: tl.constexpr,
    TOKENS: tl.constexpr,
    FLOORED: tl.constexpr,
    FILTERED: tl.constexpr,
):
    # Grid: (N,). All tokens pass if the maximum is NaN or infinite: the race chooses it.
    row = tl.program_id(0)
    places = tl.arange(0, PADDED_PARTS)
    keys = tl.load(largest + row.to(tl.int64) * parts + places, mask=places < parts, other=NO_KEY)
    most = tl.max(keys, 0)
    limit_key = tl.full((), NO_KEY, tl.int32)
    limit_id = tl.full((), ALL, tl.int32)
    if (most > MINUS_INFINITY_KEY) & (most < INFINITY_KEY):
        if FLOORED:
            limit_key = key_of(number_of(most) + tl.load(log_min_p + row))
        if FILTERED:
            k = tl.minimum(tl.load(top_k + row), vocab).to(tl.int32)
            p = tl.load(top_p + row)
            numbers = scaled + row.to(tl.int64) * scaled_stride
            limit_key, limit_id = _most_likely(numbers, limit_key, most, k, p, vocab, TOKENS)
    tl.store(limit_keys + row, limit_key)
    tl.store(limit_ids + row, limit_id)
