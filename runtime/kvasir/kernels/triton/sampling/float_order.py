"""Integer keys in the order of float32 numbers."""

import triton
import triton.language as tl

NAN_KEY = tl.constexpr(0x7FFFFFFF)
INFINITY_KEY = tl.constexpr(0x7F800000)
MINUS_INFINITY_KEY = tl.constexpr(-0x7F800001)
# Below the keys of all numbers.
NO_KEY = tl.constexpr(-0x80000000)


@triton.jit
def key_of(x):  # float32 → int32. NaN is above all numbers, as in torch; -0.0 equals 0.0
    bits = tl.where(x == 0.0, 0, x.to(tl.int32, bitcast=True))
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(x != x, NAN_KEY, key)


@triton.jit
def number_of(key):  # int32 → float32
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
