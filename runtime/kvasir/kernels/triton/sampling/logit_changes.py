"""Kernels that change logits: masks of grammars, bias and penalties."""

import triton
import triton.language as tl

MINUS_INFINITY = tl.constexpr(float("-inf"))


@triton.jit(do_not_specialize=["vocab", "num_words"])
def forbid_masked(
    logits,  # [R, V] float32, stride `stride`, in and out
    words,  # [N, num_words] int32; bit i % 32 of word i // 32: token i is allowed
    rows,  # [N] int64
    vocab,
    stride,
    num_words,
    PART_TOKENS: tl.constexpr,
):  # Grid: (N, parts)
    place = tl.program_id(0)
    ids = tl.program_id(1) * PART_TOKENS + tl.arange(0, PART_TOKENS)
    exists = ids < vocab
    word = tl.load(words + place.to(tl.int64) * num_words + ids // 32, mask=exists, other=0)
    forbidden = exists & (((word >> (ids % 32)) & 1) == 0)
    row = tl.load(rows + place)
    tl.store(logits + row * stride + ids, tl.full([PART_TOKENS], MINUS_INFINITY, tl.float32), mask=forbidden)


@triton.jit(do_not_specialize=["vocab"])
def count_left(
    left,  # [N, parts] int32: out, tokens that are not -inf
    logits,  # [R, V] float32, stride `stride`
    rows,  # [N] int64
    vocab,
    stride,
    PART_TOKENS: tl.constexpr,
):  # Grid: (N, parts)
    place = tl.program_id(0)
    part = tl.program_id(1)
    ids = part * PART_TOKENS + tl.arange(0, PART_TOKENS)
    row = tl.load(rows + place)
    x = tl.load(logits + row * stride + ids, mask=ids < vocab, other=MINUS_INFINITY)
    count = tl.sum((x != MINUS_INFINITY).to(tl.int32), 0)
    tl.store(left + place.to(tl.int64) * tl.num_programs(1) + part, count)


@triton.jit(do_not_specialize=["vocab", "parts"])
def restore_empty(
    logits,  # [R, V] float32, stride `stride`, in and out
    saved,  # [N, V] float32
    left,  # [N, parts] int32
    rows,  # [N] int64
    vocab,
    stride,
    saved_stride,
    parts,
    PART_TOKENS: tl.constexpr,
    PADDED_PARTS: tl.constexpr,
):  # Grid: (N, parts). Restores rows without an allowed token.
    place = tl.program_id(0)
    places = tl.arange(0, PADDED_PARTS)
    counts = tl.load(left + place.to(tl.int64) * parts + places, mask=places < parts, other=0)
    if tl.sum(counts, 0) == 0:
        ids = tl.program_id(1) * PART_TOKENS + tl.arange(0, PART_TOKENS)
        exists = ids < vocab
        row = tl.load(rows + place)
        x = tl.load(saved + place.to(tl.int64) * saved_stride + ids, mask=exists)
        tl.store(logits + row * stride + ids, x, mask=exists)


@triton.jit(do_not_specialize=["num_entries"])
def add_to_entries(
    logits,  # [R, V] float32, stride `stride`, in and out
    rows,  # [M] int64
    tokens,  # [M] int64; entries are unique
    added,  # [M] float32
    num_entries,
    stride,
    ENTRIES: tl.constexpr,
):  # Grid: (M / ENTRIES,)
    entries = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    exists = entries < num_entries
    row = tl.load(rows + entries, mask=exists, other=0)
    at = logits + row * stride + tl.load(tokens + entries, mask=exists, other=0)
    x = tl.load(at, mask=exists, other=0.0) + tl.load(added + entries, mask=exists, other=0.0)
    tl.store(at, x, mask=exists)


@triton.jit(do_not_specialize=["vocab"])
def penalise_tokens(
    logits,  # [R, V] float32, stride `stride`, in and out
    rows,  # [N] int64
    slots,  # [N] int64
    counts,  # [S, V] int32; 0: no penalty
    penalties,  # [S, 3] float64: repetition, frequency, presence
    vocab,
    stride,
    counts_stride,
    PART_TOKENS: tl.constexpr,
    IN_OUTPUT: tl.constexpr,
):
    # Grid: (N, parts). Adds penalties in float64, like the reference.
    place = tl.program_id(0)
    ids = tl.program_id(1) * PART_TOKENS + tl.arange(0, PART_TOKENS)
    slot = tl.load(slots + place)
    count = tl.load(counts + slot * counts_stride + ids, mask=ids < vocab, other=0)
    repetition = tl.load(penalties + slot * 3).to(tl.float32)
    times = count // IN_OUTPUT
    frequency, presence = tl.load(penalties + slot * 3 + 1), tl.load(penalties + slot * 3 + 2)
    taken = frequency * times + presence * (times > 0).to(tl.float64)
    at = logits + tl.load(rows + place) * stride + ids
    x = tl.load(at, mask=count > 0, other=0.0)
    x = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition) - taken.to(tl.float32)
    tl.store(at, x, mask=count > 0)
