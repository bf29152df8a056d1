"""Kernels that choose a row's token: the largest logit, or a race (kvasir/sampling/sampler.py).

The largest candidate wins, so NaN wins over numbers and the lowest id over equal scores:

    bits 63 to 32: the key of the score (float_order.py)      bits 31 to 0: 2**31 - 1 - token id
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from kvasir.kernels.triton.sampling.float_order import NO_KEY, key_of

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
MIX_2 = tl.constexpr(0x94D049BB133111EB)
STRIDE_32 = tl.constexpr(0x9E3779B9)
MIX_32_1 = tl.constexpr(0x7FEB352D)
MIX_32_2 = tl.constexpr(0x846CA68B)
TWO_31 = tl.constexpr(2.0**-31)
BELOW_1 = tl.constexpr(1 - 2.0**-24)


@triton.jit
def _mix(x):  # uint64
    x = (x ^ (x >> 30)) * MIX_1
    x = (x ^ (x >> 27)) * MIX_2
    return x ^ (x >> 31)


@triton.jit
def uniform(seed, position, ids):
    # seed, position: int64; ids: [N] int32 → [N] float32 in (0, 1), as in kvasir/sampling/random.py
    state = seed.to(tl.uint64, bitcast=True) + GOLDEN
    key = _mix(_mix(state) + (position + 1).to(tl.uint64, bitcast=True) * GOLDEN)
    bits = ids.to(tl.uint32, bitcast=True) * STRIDE_32 + key.to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * MIX_32_1
    bits = (bits ^ (bits >> 15) ^ (key >> 32).to(tl.uint32)) * MIX_32_2
    bits = (bits ^ (bits >> 16)) & 0x7FFFFFFF
    return tl.minimum((bits.to(tl.int32, bitcast=True).to(tl.float32) + 0.5) * TWO_31, BELOW_1)


@triton.jit
def log_exponential(u, INTERPRETED: tl.constexpr):
    # Torch's functions. The interpreter has no log1p: Kahan's formula replaces it.
    if INTERPRETED:
        rest = 1.0 - u
        is_tiny = rest == 1.0
        quotient = tl.div_rn(tl.log(rest), tl.where(is_tiny, 1.0, rest - 1.0))
        return tl.log(tl.where(is_tiny, u, quotient * u))
    return libdevice.log(-libdevice.log1p(-u))


@triton.jit(do_not_specialize=["vocab"])
def race_tokens(
    best,  # [N, parts] int64: out
    numbers,  # logits [R, V] or SCALED: [N, V] float32
    rows,  # [N] int64: RANDOM and not SCALED
    temperature,  # [N] float32: RANDOM and not SCALED
    seeds,  # [N] int64: RANDOM
    positions,  # [N] int64: RANDOM
    limit_keys,  # [N] int32: LIMITED, see filters.py
    limit_ids,  # [N] int32: LIMITED
    vocab,
    stride,
    PART_TOKENS: tl.constexpr,
    RANDOM: tl.constexpr,
    SCALED: tl.constexpr,
    LIMITED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # Grid: (N, parts). Not RANDOM: N is R
    race = tl.program_id(0)
    part = tl.program_id(1)
    ids = part * PART_TOKENS + tl.arange(0, PART_TOKENS)
    exists = ids < vocab
    row = race.to(tl.int64)
    if RANDOM and not SCALED:
        row = tl.load(rows + race)
    x = tl.load(numbers + row * stride + ids, mask=exists, other=0.0).to(tl.float32)
    if RANDOM and not SCALED:
        x = tl.div_rn(x, tl.load(temperature + race))
    kept = exists
    if LIMITED:
        limit = tl.load(limit_keys + race)
        key = key_of(x)
        kept = kept & ((key > limit) | ((key == limit) & (ids <= tl.load(limit_ids + race))))
    if RANDOM:
        u = uniform(tl.load(seeds + race), tl.load(positions + race), ids)
        x = x - log_exponential(u, INTERPRETED)
    key = tl.where(kept, key_of(x), NO_KEY)
    candidates = (key.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)
    tl.store(best + race.to(tl.int64) * tl.num_programs(1) + part, tl.max(candidates, 0))


@triton.jit(do_not_specialize=["parts"])
def pick_tokens(
    chosen,  # [R] int64: out
    best,  # [N, parts] int64
    rows,  # [N] int64: INDEXED
    parts,
    PADDED_PARTS: tl.constexpr,
    INDEXED: tl.constexpr,
):  # Grid: (N,). Not INDEXED: N is R
    race = tl.program_id(0)
    places = tl.arange(0, PADDED_PARTS)
    lowest = -0x8000000000000000
    candidates = tl.load(best + race.to(tl.int64) * parts + places, mask=places < parts, other=lowest)
    winner = tl.max(candidates, 0)
    row = race.to(tl.int64)
    if INDEXED:
        row = tl.load(rows + race)
    tl.store(chosen + row, 0x7FFFFFFF - (winner & 0x7FFFFFFF))
