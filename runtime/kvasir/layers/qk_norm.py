"""Norms of queries and keys before attention."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir.layers.layout import Split
from kvasir.layers.norm import Norm
from kvasir.layers.parameter import Placement, new_parameter


class HeadSplit(NamedTuple):
    """The query or key heads of a model, which are split over the ranks."""

    heads: int  # of the whole model
    head_dim: int
    copies: int = 1  # neighbouring ranks with the same heads


QKNorm = Callable[[HeadSplit, float, Placement], Norm]


@cache  # equal configs are equal
def norm_of_each_head(norm: Callable[[int, float, Placement], Norm]) -> QKNorm:
    return lambda heads, eps, placement: norm(heads.head_dim, eps, placement)


class LayerNormOfHeads(Norm):
    """A layer norm of each head with weights of its own and no bias (Cohere)."""

    def __init__(self, heads: HeadSplit, eps: float, placement: Placement) -> None:
        super().__init__()
        self.weight = new_parameter(
            heads.heads, heads.head_dim, placement=placement, split=_split_of(heads, placement)
        )
        self._shape = (heads.head_dim,)
        self._eps = eps

    def normalise_(self, x: Tensor) -> None:  # x [T, own heads, head_dim]
        x.copy_(F.layer_norm(x.float(), self._shape, eps=self._eps) * self.weight)


class ProjectionRMSNorm(Norm):
    """A norm over all heads at once (OLMo 2). Ranks add up their sums of squares."""

    def __init__(self, heads: HeadSplit, eps: float, placement: Placement) -> None:
        super().__init__()
        self._group = placement.parallel.tensor
        self._size = size = heads.heads * heads.head_dim
        self._copies = heads.copies
        self.weight = new_parameter(size, placement=placement, split=_split_of(heads, placement))
        self._eps = eps

    def normalise_(self, x: Tensor) -> None:  # x [T, own heads, head_dim]
        exact = x.flatten(1).to(torch.float32, copy=True)  # [T, own heads * head_dim]
        squares = torch.linalg.vector_norm(exact, dim=-1, keepdim=True).square_()  # [T, 1]
        if self._group.size > 1:
            squares = self._group.all_reduce(squares).div_(self._copies)
        exact.mul_(squares.div_(self._size).add_(self._eps).rsqrt_()).mul_(self.weight)
        x.copy_(exact.view(x.shape))


class L2Norm(Norm):
    """A norm of each head without weights (Llama 4)."""

    def __init__(self, heads: HeadSplit, eps: float, placement: Placement) -> None:
        super().__init__()
        self._eps = eps

    def normalise_(self, x: Tensor) -> None:  # x [T, own heads, head_dim]
        exact = x.float()
        x.copy_(exact * exact.square().mean(dim=-1, keepdim=True).add_(self._eps).rsqrt_())


def _split_of(heads: HeadSplit, placement: Placement) -> Split:
    group = placement.parallel.tensor
    return Split(0, group.rank, group.size).shared_by(heads.copies)
