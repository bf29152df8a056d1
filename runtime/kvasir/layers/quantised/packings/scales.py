"""Reads scales into [outputs, groups]."""

from collections.abc import Iterable, Sequence
from math import gcd, prod
from typing import Final

import torch
from torch import Tensor

from kvasir.layers.layout import WHOLE, Part
from kvasir.layers.parameter import Source, TensorLoader

# e2m1, by its 4 bits
FLOAT4: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


class ScaleLoader(TensorLoader):
    # Checkpoints write scales with or without dimensions of 1.

    def fill(self, target: Tensor, source: Source, shard: str) -> None:
        super().fill(target, _Shaped(source, self._layout.shape_of(shard)), shard)


class ShardLoader(ScaleLoader):
    # An entry for each shard. The tensor of a fused layer fills all.

    def fill(self, target: Tensor, source: Source, shard: str) -> None:
        for each in self._layout.shards if shard == WHOLE else (shard,):
            super().fill(target, source, each)


class _Shaped:
    def __init__(self, source: Source, wanted: Sequence[int]) -> None:
        self._source = source
        given = tuple(source.shape)
        self.shape = tuple(wanted) if _without_ones(given) == _without_ones(wanted) else given

    def __getitem__(self, part: Part, /) -> Tensor:
        kept = iter([piece for piece, size in zip(part, self.shape, strict=True) if size != 1])
        piece = self._source[tuple(slice(None) if size == 1 else next(kept) for size in self._source.shape)]
        sizes = [len(range(*piece.indices(size))) for piece, size in zip(part, self.shape, strict=True)]
        floats = piece.float() if piece.dtype == torch.float8_e8m0fnu else piece
        return floats.reshape(-1)[: prod(sizes)].view(sizes)


def _without_ones(shape: Iterable[int]) -> list[int]:
    return [size for size in shape if size != 1]


def equal_groups(scales: Tensor, inputs: int, unit: int) -> Tensor:
    """Repeat scales [outputs, groups] of `unit` inputs so that equal groups divide the inputs.

    >>> equal_groups(torch.tensor([[1.0, 2.0]]), inputs=6, unit=4)
    tensor([[1., 1., 2.]])
    """
    if inputs % unit == 0 or scales.shape[1] == 1:
        return scales
    group = gcd(inputs, unit)
    return scales[:, torch.arange(0, inputs, group, device=scales.device) // unit]


def of_rows(scales: Tensor, rows: Iterable[int], unit: int | None = None) -> Tensor:
    """Repeat scales [entries, …] for the rows of shards. An entry is for `unit` rows, or for a shard.

    >>> of_rows(torch.tensor([1.0, 2.0, 3.0]), [3, 1], unit=2)
    tensor([1., 1., 2., 3.])
    """
    places, first = [], 0
    for size in rows:
        entries = 1 if unit is None else -(-size // unit)
        places.append(first + torch.arange(size, device=scales.device) // (unit or max(size, 1)))
        first += entries
    return scales[torch.cat(places)]


def powers_of_two(exponents: Tensor) -> Tensor:
    # e8m0 → float32
    return torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents.int() - 127)
