"""Feed-forward layers: gated (Shazeer, 2020) and plain."""

import torch
from torch import Tensor, nn

from kvasir.layers.activation import Activation, gated, plain
from kvasir.layers.linear import ColumnLinear, RowLinear
from kvasir.layers.parameter import Placement


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)). `up_first`: a checkpoint's tensor of both has up before gate."""

    def __init__(
        self,
        size: int,
        inner: int,
        activation: Activation,
        *,
        bias: bool,
        placement: Placement,
        output_bias: bool | None = None,  # None: as `bias`
        up_first: bool = False,
    ) -> None:
        super().__init__()
        shards = dict.fromkeys(("up_proj", "gate_proj") if up_first else ("gate_proj", "up_proj"), inner)
        self.gate_up_proj = ColumnLinear(size, shards, bias=bias, placement=placement.at("gate_up_proj"))
        has_bias = bias if output_bias is None else output_bias
        self.down_proj = RowLinear(inner, size, bias=has_bias, placement=placement.at("down_proj"))
        self.activation = activation
        self._up_first = up_first

    def forward(self, x: Tensor) -> Tensor:  # [T, size]
        both = self.gate_up_proj(x)
        if self._up_first:
            both = torch.cat(both.chunk(2, dim=-1)[::-1], dim=-1)
        return self.down_proj(gated(both, self.activation))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """fc2(activation(fc1(x))). `transposed`: the checkpoint stores [in, out], as in GPT-2."""

    def __init__(
        self,
        size: int,
        inner: int,
        activation: Activation,
        *,
        bias: bool,
        placement: Placement,
        transposed: bool = False,
    ) -> None:
        super().__init__()
        self.fc1 = ColumnLinear(size, inner, bias=bias, placement=placement.at("fc1"), transposed=transposed)
        self.fc2 = RowLinear(inner, size, bias=bias, placement=placement.at("fc2"), transposed=transposed)
        self._activation = activation

    def forward(self, x: Tensor) -> Tensor:  # [T, size]
        return self.fc2(plain(self.fc1(x), self._activation))  # type: ignore[no-any-return]
