"""Random numbers of (seed, position, token id), with equal bits on CPUs and GPUs.

SplitMix64 (Steele, Lea, Flood, 2014) makes a key per row, and a 32-bit mixer (Wellons) hashes token ids.
"""

from typing import Final

import torch
from torch import Tensor


def _signed(value: int, bits: int) -> int:
    return value - 2**bits if value >= 2 ** (bits - 1) else value


_GOLDEN: Final = _signed(0x9E3779B97F4A7C15, 64)
_MIX_1: Final = _signed(0xBF58476D1CE4E5B9, 64)
_MIX_2: Final = _signed(0x94D049BB133111EB, 64)
_STRIDE_32: Final = _signed(0x9E3779B9, 32)
_MIX_32_1: Final = 0x7FEB352D
_MIX_32_2: Final = _signed(0x846CA68B, 32)
_BELOW_1: Final = 1 - 2.0**-24


def exponential(seeds: Tensor, positions: Tensor, size: int) -> Tensor:
    # [N] int64 each → [N, size] float32, > 0 and finite
    return torch.log1p(uniform(seeds, positions, size).neg_()).neg_()


def uniform(seeds: Tensor, positions: Tensor, size: int) -> Tensor:
    # [N] int64 each → [N, size] float32 in (0, 1)
    key = _mix(_mix(seeds + _GOLDEN) + (positions + 1) * _GOLDEN)  # [N]
    low, high = key.to(torch.int32)[:, None], _shift_right(key, 32).to(torch.int32)[:, None]
    ids = torch.arange(size, dtype=torch.int32, device=seeds.device)
    bits = ids * _STRIDE_32 + low  # [N, size]
    bits = _mix_32(bits, 16).mul_(_MIX_32_1)
    bits = _mix_32(bits, 15).bitwise_xor_(high).mul_(_MIX_32_2)
    bits = _mix_32(bits, 16).bitwise_and_(2**31 - 1)
    # The last 64 of 2**31 would round to 1, and its exponential number is infinite.
    return bits.float().add_(0.5).mul_(2.0**-31).clamp_(max=_BELOW_1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def _mix_32(x: Tensor, shift: int) -> Tensor:
    # x ^ (x >> shift), logical, in place
    return x.bitwise_xor_(torch.bitwise_right_shift(x, shift).bitwise_and_((1 << (32 - shift)) - 1))


def _shift_right(x: Tensor, bits: int) -> Tensor:
    # torch's int64 shift repeats the sign
    return torch.bitwise_right_shift(x, bits) & ((1 << (64 - bits)) - 1)
