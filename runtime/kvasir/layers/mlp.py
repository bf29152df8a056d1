"""Feed-forward layers: gated (Shazeer, 2020), plain, and a mixture of gated experts."""

import torch
from torch import Tensor, nn

from kvasir.layers.activation import Activation, gated
from kvasir.layers.linear import Linear
from kvasir.layers.parameter import Placement


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x))"""

    def __init__(self, size: int, inner: int, activation: Activation, *, bias: bool, placement: Placement) -> None:
        super().__init__()
        self.gate_up_proj = Linear(size, {"gate_proj": inner, "up_proj": inner}, bias=bias, placement=placement)
        self.down_proj = Linear(inner, size, bias=bias, placement=placement)
        self._activation = activation

    def forward(self, x: Tensor) -> Tensor:  # [T, size]
        return self.down_proj(gated(self.gate_up_proj(x), self._activation))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """fc2(activation(fc1(x))), with biases. `transposed`: as GPT-2 stores its weights."""

    def __init__(
        self, size: int, inner: int, activation: Activation, placement: Placement, *, transposed: bool = False
    ) -> None:
        super().__init__()
        self.fc1 = Linear(size, inner, bias=True, placement=placement, transposed=transposed)
        self.fc2 = Linear(inner, size, bias=True, placement=placement, transposed=transposed)
        self._activation = activation

    def forward(self, x: Tensor) -> Tensor:  # [T, size]
        return self.fc2(self._activation(self.fc1(x)))  # type: ignore[no-any-return]


class SparseMoE(nn.Module):
    """Each token goes to the `top_k` experts that the router scores highest (Shazeer et al., 2017).

    Tokens are sorted by expert, so that each expert that got any is one call; `renormalise` makes a token's weights
    sum to 1. A token's parts are added in float32 in the order of its own scores, whatever its neighbours chose.
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
        self.gate = Linear(size, experts, bias=False, placement=placement)
        self.experts = nn.ModuleList(
            GatedMLP(size, inner, activation, bias=False, placement=placement) for _ in range(experts)
        )
        self._top_k = top_k
        self._renormalise = renormalise

    def forward(self, x: Tensor) -> Tensor:  # [T, size]
        weights, chosen = self.gate(x).float().softmax(dim=-1).topk(self._top_k, dim=-1)  # [T, top_k]
        if self._renormalise:
            weights /= weights.sum(dim=-1, keepdim=True)
        by_expert = chosen.flatten().argsort(stable=True)  # [T * top_k] places in `chosen`
        sizes = chosen.flatten().bincount(minlength=len(self.experts)).tolist()
        parts = torch.empty(by_expert.shape[0], x.shape[1], dtype=x.dtype, device=x.device)
        for expert, places in zip(self.experts, by_expert.split(sizes), strict=True):
            if len(places):
                parts[places] = expert(x[places // self._top_k])
        scaled = parts.view(-1, self._top_k, x.shape[1]) * weights[:, :, None]  # [T, top_k, size] float32
        total: Tensor = scaled.sum(dim=1)
        return total.to(x.dtype)
