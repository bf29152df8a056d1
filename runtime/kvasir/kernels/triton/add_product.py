"""A product of tiles that is added to sums in float32."""

import triton
import triton.language as tl


@triton.jit
def add_product(sums, a, b, EXACT: tl.constexpr, INTERPRETED: tl.constexpr):
    # `EXACT`: float32 is not rounded to TF32. Triton's interpreter multiplies the bits of bfloat16 as integers.
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), sums)
    if EXACT:
        return tl.dot(a, b, sums, input_precision="ieee")
    return tl.dot(a, b, sums)
