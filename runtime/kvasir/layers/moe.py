"""A mixture of gated experts, whole or split over ranks.

Each rank sees all tokens. It holds a part of every expert, or whole experts (expert parallelism): then it computes
the tokens that chose one of its own. Either way the ranks add up their sums in float32.
"""

import torch
from torch import Tensor, nn

from kvasir.layers.activation import Activation, gated
from kvasir.layers.linear import Linear, StackedLinear
from kvasir.layers.parameter import Placement, Split


class Experts(nn.Module):
    """down(activation(gate(x)) * up(x)) of each expert."""

    def __init__(self, size: int, inner: int, activation: Activation, count: int, placement: Placement) -> None:
        super().__init__()
        group = placement.parallel.tensor
        if placement.parallel.expert_parallel:
            share, rank, ranks = count // group.size, 0, 1
            self.own = range(share * group.rank, share * (group.rank + 1))
        else:
            rank, ranks = group.rank, group.size
            self.own = range(count)
        self.gate_up_proj = StackedLinear(
            size,
            {"gate_proj": inner, "up_proj": inner},
            count=count,
            own=self.own,
            split=Split(0, rank, ranks),
            placement=placement.at("gate_up_proj"),
        )
        self.down_proj = StackedLinear(
            inner,
            {"": size},
            count=count,
            own=self.own,
            split=Split(1, rank, ranks),
            placement=placement.at("down_proj"),
        )
        self._activation = activation
        self._all = len(self.own) == count
        self._grouped = placement.device.type != "cpu" and placement.dtype == torch.bfloat16

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        """x [T, size], chosen [T, top_k] → [T, top_k, size]; zeros for experts of other ranks."""
        top_k = chosen.shape[1]
        local = chosen.flatten()  # [T * top_k]
        if not self._all:
            local = local - self.own.start
            local = torch.where((local >= 0) & (local < len(self.own)), local, len(self.own))  # others come last
        sorted_experts, places = local.sort(stable=True)
        compute = self.in_groups if self._grouped else self.one_by_one
        return compute(x, sorted_experts, places, top_k).view(-1, top_k, x.shape[1])

    def one_by_one(self, x: Tensor, sorted_experts: Tensor, places: Tensor, top_k: int) -> Tensor:
        """[T * top_k, size]; each expert that has tokens is a product, so the host reads their numbers."""
        sizes = sorted_experts.bincount(minlength=len(self.own) + 1).tolist()
        new = torch.empty if self._all else torch.zeros
        parts = new(places.shape[0], x.shape[1], dtype=x.dtype, device=x.device)
        for expert, tokens in enumerate(places.split(sizes)[: len(self.own)]):
            if len(tokens):
                inner = gated(self.gate_up_proj.one(expert, x[tokens // top_k]), self._activation)
                parts[tokens] = self.down_proj.one(expert, inner)
        return parts

    def in_groups(self, x: Tensor, sorted_experts: Tensor, places: Tensor, top_k: int) -> Tensor:
        """[T * top_k, size]; all experts are one product, and the host waits for nothing."""
        experts = torch.arange(len(self.own), device=x.device)
        ends = torch.searchsorted(sorted_experts, experts, right=True, out_int32=True)
        inner = gated(self.gate_up_proj.grouped(x[places // top_k], ends), self._activation)
        products = self.down_proj.grouped(inner, ends)
        if not self._all:
            products = products.masked_fill((sorted_experts == len(self.own))[:, None], 0)
        return torch.empty_like(products).index_copy_(0, places, products)


class SparseMoE(nn.Module):
    """Each token goes to the `top_k` experts that the router scores highest (Shazeer et al., 2017).

    `renormalise` makes a token's weights sum to 1. A token's parts are added in float32 in the order of its own
    scores, regardless of its neighbours' choices. Split over ranks, each rank adds its own parts so, and then the
    ranks' sums are added: other roundings in float32 than on one rank.
    """

    def __init__(
        self,
        size: int,
        inner: int,
        activation: Activation,
        *,
        experts: int,
        top_k: int,
        renormalise: bool,
        placement: Placement,
    ) -> None:
        super().__init__()
        self.gate = Linear(size, experts, bias=False, placement=placement.at("gate"))
        self.experts = Experts(size, inner, activation, experts, placement.at("experts"))
        self._group = placement.parallel.tensor
        self._top_k = top_k
        self._renormalise = renormalise

    def forward(self, x: Tensor) -> Tensor:  # [T, size]
        weights, chosen = self.gate(x).float().softmax(dim=-1).topk(self._top_k, dim=-1)  # [T, top_k]
        if self._renormalise:
            weights /= weights.sum(dim=-1, keepdim=True)
        scaled = self.experts(x, chosen) * weights[:, :, None]  # [T, top_k, size] float32
        total: Tensor = scaled.sum(dim=1)
        return self._group.all_reduce(total).to(x.dtype)
