"""Parameters that know how checkpoint tensors fill them.

Every parameter is allocated without initialisation and carries a `weight_loader`; `kvasir.models.loader` calls it
for each tensor of the checkpoint and asks at the end what never came.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Placement:
    """Where and in which precision a model's parameters live."""

    device: torch.device
    dtype: torch.dtype


class WeightLoader:
    """Copies checkpoint tensors into one parameter: whole, or by named shards of its first dimension.

    A shard is a range of output rows, so that projections which read the same input (q, k, v; gate, up) are one
    parameter and one matrix product. A checkpoint may have them fused already (Phi-3): a whole tensor fills all
    shards. `transposed`: the checkpoint stores [in, out] (GPT-2's Conv1D).
    """

    WHOLE = ""

    def __init__(self, shape: tuple[int, ...], shards: Mapping[str, int] | None, transposed: bool) -> None:
        self._transposed = transposed
        self._ranges: dict[str, slice] = {}
        start = 0
        for name, size in (shards or {self.WHOLE: shape[0]}).items():
            self._ranges[name] = slice(start, start + size)
            start += size
        self.missing: set[str] = set(self._ranges)
        """Shards that no tensor has filled yet."""

    def __call__(self, parameter: nn.Parameter, tensor: torch.Tensor, shard: str) -> None:
        """Raises ValueError for a shape that does not fit or a shard that came before."""
        shards = set(self._ranges) if shard == self.WHOLE else {shard}
        if not shards <= self.missing:
            raise ValueError("it was loaded before")
        target = parameter.data if shard == self.WHOLE else parameter.data[self._ranges[shard]]
        source = tensor.t() if self._transposed and tensor.dim() == 2 else tensor
        if target.shape != source.shape:
            expected = target.t().shape if self._transposed and target.dim() == 2 else target.shape
            raise ValueError(f"its shape is {list(tensor.shape)} and the model has {list(expected)}")
        target.copy_(source)
        self.missing -= shards


def new_parameter(
    *shape: int, placement: Placement, shards: Mapping[str, int] | None = None, transposed: bool = False
) -> nn.Parameter:
    """An uninitialised parameter; `shards` maps the names of its row ranges to their sizes, in order."""
    empty = torch.empty(shape, dtype=placement.dtype, device=placement.device)
    parameter = nn.Parameter(empty, requires_grad=False)
    parameter.weight_loader = WeightLoader(shape, shards, transposed)  # type: ignore[attr-defined]
    return parameter


def weight_loader_of(parameter: nn.Parameter) -> WeightLoader:
    loader = parameter.weight_loader  # type: ignore[attr-defined]
    assert isinstance(loader, WeightLoader)
    return loader
