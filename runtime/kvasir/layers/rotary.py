"""Rotary position embedding (Su et al., 2021), in the half-split layout of Llama checkpoints.

The angles of a step are computed once, not per layer, and from positions rather than from a table: a table for a
long context would take more memory than these few numbers take time.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LinearScaling:
    """Positions divided by a factor."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's: long wavelengths are stretched, short ones kept, those between interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


RopeScaling = LinearScaling | Llama3Scaling


@dataclass(frozen=True)
class Rotation:
    """The angles of one step's tokens, broadcast over heads."""

    cos: Tensor  # [T, 1, head_dim]
    sin: Tensor  # [T, 1, head_dim], the first half negated


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """[head_dim / 2] float32: radians per position."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if scaling is None:
        return frequencies
    if isinstance(scaling, LinearScaling):
        return frequencies / scaling.factor
    context = scaling.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    # 0 where a wavelength fits the original context less than `low` times, 1 where more than `high` times.
    kept = ((context / wavelengths - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


class RotaryEmbedding:
    """Turns positions into a step's Rotation."""

    def __init__(self, head_dim: int, theta: float, scaling: RopeScaling | None, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(head_dim, theta, scaling).to(device)

    def rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        angles = positions[:, None].float() * self._frequencies  # [T, head_dim / 2]
        cos, sin = angles.cos(), angles.sin()
        return Rotation(
            cos=torch.cat((cos, cos), dim=-1).to(dtype)[:, None],
            sin=torch.cat((-sin, sin), dim=-1).to(dtype)[:, None],
        )


def rotate_(x: Tensor, rotation: Rotation) -> None:
    """Rotate queries and keys in place. x: [T, heads, head_dim]"""
    first, second = x.chunk(2, dim=-1)
    swapped = torch.cat((second, first), dim=-1)
    x.mul_(rotation.cos).addcmul_(swapped, rotation.sin)
