"""Rotary position embedding (Su et al., 2021), in Llama's half-split layout."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kvasir.kernels.choose_operations import operations_for


@dataclass(frozen=True)
class LinearScaling:
    factor: float


@dataclass(frozen=True)
class NTKScaling:
    """Alibaba's GTE: short wavelengths stay almost as they are, and the longest becomes `factor` times as long."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1: stretches long wavelengths, keeps short ones and interpolates others."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (Peng et al., 2023): like Llama 3.1, by a ramp over the index of the wavelength."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    attention_factor: float  # multiplies the rotated queries and keys


@dataclass(frozen=True)
class LongRopeScaling:
    """LongRoPE (Ding et al., 2024) of Phi-3: a factor for each wavelength, from one of two sets."""

    # The longest possible request decides: keys in the cache cannot be rotated again.
    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_position_embeddings: int
    attention_factor: float


RopeScaling = LinearScaling | NTKScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True)
class QueryGrowth:
    """Queries grow with the logarithm of their position (Llama 4, Ministral 3)."""

    beta: float
    original_max_position_embeddings: int

    def factors(self, positions: Tensor) -> Tensor:  # [T] → [T] float32
        turns = positions // self.original_max_position_embeddings
        return turns.float().log1p_().mul_(self.beta).add_(1)


@dataclass(frozen=True)
class Rope:
    dim: int  # the first numbers of each head, which are rotated
    theta: float
    scaling: RopeScaling | None
    # Neighbouring numbers of a head turn together (GPT-J), instead of a number of each half (GPT-NeoX, Llama).
    interleaved: bool = False
    query_growth: QueryGrowth | None = None


@dataclass(frozen=True)
class Rotation:
    cos: Tensor  # [T, 1, dim], two equal halves
    sin: Tensor  # [T, 1, dim], the first half negated
    query_factors: Tensor | None = None  # [T, 1, 1]


def inverse_frequencies(rope: Rope, context: int) -> Tensor:
    """Return [dim / 2] float32 radians per position. `context` is the longest request in tokens."""
    wavelengths = rope.theta ** (torch.arange(0, rope.dim, 2, dtype=torch.int64).float() / rope.dim)
    frequencies = 1.0 / wavelengths
    scaling = rope.scaling
    if scaling is None:
        return frequencies
    if isinstance(scaling, LinearScaling):
        return frequencies / scaling.factor
    if isinstance(scaling, NTKScaling):
        steps = torch.arange(1, rope.dim // 2 + 1).float()
        return frequencies / scaling.factor ** (2 * steps / rope.dim)
    if isinstance(scaling, LongRopeScaling):
        long = context > scaling.original_max_position_embeddings
        return 1.0 / (torch.tensor(scaling.long_factors if long else scaling.short_factors) * wavelengths)
    kept = (
        _kept_by_llama3(frequencies, scaling)
        if isinstance(scaling, Llama3Scaling)
        else _kept_by_yarn(rope, scaling)
    )
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


def _kept_by_llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    # from 0 at `low` wavelengths per original context to 1 at `high`
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return ((turns - low) / (high - low)).clamp(0, 1)


def _kept_by_yarn(rope: Rope, scaling: YarnScaling) -> Tensor:
    # from 0 at `beta_slow` wavelengths per original context to 1 at `beta_fast`
    def index(turns: float) -> float:
        wavelength = scaling.original_max_position_embeddings / turns
        return rope.dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = index(scaling.beta_fast), index(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.dim - 1)
    if first == last:
        last += 0.001  # a step instead of a ramp
    return 1 - ((torch.arange(rope.dim // 2).float() - first) / (last - first)).clamp(0, 1)


class RotaryEmbedding:
    # Without a table of angles, which would be large for a long context.
    def __init__(self, rope: Rope, context: int, device: torch.device) -> None:
        self._rope = rope
        self._device = device
        self._amplitude = getattr(rope.scaling, "attention_factor", 1.0)
        self.fit_context(context)

    def fit_context(self, context: int) -> None:
        """Set the longest request in tokens. The KV cache must be empty."""
        self._frequencies = inverse_frequencies(self._rope, context).to(self._device)

    def rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        angles = positions[:, None].float() * self._frequencies  # [T, dim / 2]
        cos, sin = angles.cos(), angles.sin()
        if self._amplitude != 1.0:
            cos, sin = cos.mul_(self._amplitude), sin.mul_(self._amplitude)
        growth = self._rope.query_growth
        return Rotation(
            cos=torch.cat((cos, cos), dim=-1).to(dtype)[:, None],
            sin=torch.cat((-sin, sin), dim=-1).to(dtype)[:, None],
            query_factors=None if growth is None else growth.factors(positions).to(dtype)[:, None, None],
        )


def rotate_(x: Tensor, rotation: Rotation) -> None:  # x [T, heads, head_dim]
    operations = operations_for(x.device, x.dtype)
    if operations is None or not operations.takes_rotation(rotation.cos.shape[-1]):
        rotate_reference_(x, rotation)
    else:
        operations.rotate_(x, rotation.cos, rotation.sin)


def rotate_qk_(qkv: Tensor, kv_heads: int, head_dim: int, rotation: Rotation) -> None:
    # qkv [T, (heads + 2 kv_heads) * head_dim]
    rotate_(qkv[:, : -kv_heads * head_dim].unflatten(1, (-1, head_dim)), rotation)


def halves_first_(x: Tensor, dim: int) -> None:
    """Reorder the first `dim` numbers of each head of x [T, heads, head_dim] from pairs to halves.

    Scores stay, because queries and keys are reordered alike.
    """
    turned = x[..., :dim]
    turned.copy_(torch.cat((turned[..., ::2], turned[..., 1::2]), dim=-1))


def rotate_reference_(x: Tensor, rotation: Rotation) -> None:
    turned = x[..., : rotation.cos.shape[-1]]
    first, second = turned.chunk(2, dim=-1)
    swapped = torch.cat((second, first), dim=-1)
    turned.mul_(rotation.cos).addcmul_(swapped, rotation.sin)
