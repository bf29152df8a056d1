"""Norms of queries and keys before attention."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

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


class ProjectionRMSNorm(Norm):
    """A norm over all heads at once (OLMo 2). Ranks add up their sums of squares."""

    def __init__(self, heads: HeadSplit, eps: float, placement: Placement) -> None:
        super().__init__()
        self._group = group = placement.parallel.tensor
        self._size = size = heads.heads * heads.head_dim
        self._copies = heads.copies
        split = Split(0, group.rank, group.size).shared_by(heads.copies)
        self.weight = new_parameter(size, placement=placement, split=split)
        self._eps = eps

    def normalise_(self, x: Tensor) -> None:  # x [T, own heads, head_dim]
        exact = x.float()
        squares = exact.square().sum(dim=(1, 2), keepdim=True)  # [T, 1, 1]
        if self._group.size > 1:
            squares = self._group.all_reduce(squares).div_(self._copies)
        factor = squares.div_(self._size).add_(self._eps).rsqrt_()
        x.copy_(exact * factor * self.weight.view(x.shape[1:]))
