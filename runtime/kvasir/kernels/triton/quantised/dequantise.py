"""The values of a tile of quantised weights."""

import triton
import triton.language as tl


@triton.jit
def _fp8_values(bits):
    # e4m3 in the bits of float16, whose exponent has another bias; also right for subnormal numbers.
    wide = bits.to(tl.uint16)
    half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0


@triton.jit
def _scaled(
    values, scales, zeros, scale_rows, start, exists, KIND: tl.constexpr, GROUP: tl.constexpr, HALF: tl.constexpr
):
    # values: [OUTPUTS, HALF], from input `start`; scale_rows: [OUTPUTS], the first scale of each output
    OUTPUTS: tl.constexpr = values.shape[0]
    if GROUP >= HALF:
        place = scale_rows + start // GROUP
        if KIND == "int4":
            values -= tl.load(zeros + place, mask=exists, other=0).to(tl.float32)[:, None]
        values *= tl.load(scales + place, mask=exists, other=0.0)[:, None]
    else:
        groups: tl.constexpr = HALF // GROUP
        place = scale_rows[:, None] + start // GROUP + tl.arange(0, groups)[None, :]
        grouped = tl.reshape(values, [OUTPUTS, groups, GROUP])
        if KIND == "int4":
            grouped -= tl.load(zeros + place, mask=exists[:, None], other=0).to(tl.float32)[:, :, None]
        grouped *= tl.load(scales + place, mask=exists[:, None], other=0.0)[:, :, None]
        values = tl.reshape(grouped, [OUTPUTS, HALF])
    return values


@triton.jit
def half_steps(
    numbers,  # int8 or float8 as uint8 [outputs, INPUTS]; 4 bits [outputs, INPUTS / 2] (pack_halves)
    scales,  # float32 [outputs, INPUTS / GROUP]
    zeros,  # uint8 like scales; read if KIND is int4
    table,  # float32 [16]; read if KIND is table4
    output,  # [OUTPUTS]
    exists,  # [OUTPUTS]
    start,
    KIND: tl.constexpr,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    PER_OUTPUT: tl.constexpr,
):
    # Two tiles [OUTPUTS, HALF] of weights in float32, from inputs `start` and `start + HALF`. Scales per output are
    # left to the sums.
    place = tl.arange(0, HALF)
    if KIND == "int8" or KIND == "fp8":
        at = numbers + output[:, None] * INPUTS + start + place[None, :]
        first = tl.load(at, mask=exists[:, None], other=0, eviction_policy="evict_first")
        second = tl.load(at + HALF, mask=exists[:, None], other=0, eviction_policy="evict_first")
        if KIND == "fp8":
            low, high = _fp8_values(first), _fp8_values(second)
        else:
            low, high = first.to(tl.float32), second.to(tl.float32)
    else:
        at = numbers + output[:, None] * (INPUTS // 2) + start // 2 + place[None, :]
        both = tl.load(at, mask=exists[:, None], other=0, eviction_policy="evict_first")
        if KIND == "table4":
            low, high = tl.load(table + (both & 15)), tl.load(table + (both >> 4))
        else:
            low, high = (both & 15).to(tl.float32), (both >> 4).to(tl.float32)
        if KIND == "signed4":
            low -= 8.0
            high -= 8.0
    if not PER_OUTPUT or KIND == "int4":
        scale_rows = output * (INPUTS // GROUP)
        low = _scaled(low, scales, zeros, scale_rows, start, exists, KIND, GROUP, HALF)
        high = _scaled(high, scales, zeros, scale_rows, start + HALF, exists, KIND, GROUP, HALF)
    return low, high
