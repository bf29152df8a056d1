"""Integers that order as numbers of float32 do: a maximum of integers is exact, also if it is taken in parts."""

import triton
import triton.language as tl

NAN_KEY = tl.constexpr(0x7FFFFFFF)
INFINITY_KEY = tl.constexpr(0x7F800000)
MINUS_INFINITY_KEY = tl.constexpr(-0x7F800001)
NO_KEY = tl.constexpr(-0x80000000)
"""Below the keys of all numbers."""


@triton.jit
def key_of(x):
    """float32 → int32. NaN is above all numbers, as torch orders it; -0.0 is equal to 0.0."""
    bits = tl.where(x == 0.0, 0, x.to(tl.int32, bitcast=True))
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(x != x, NAN_KEY, key)


@triton.jit
def number_of(key):
    """int32 → float32, the inverse for numbers"""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
