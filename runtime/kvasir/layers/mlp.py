"""Feed-forward layers: gated (Shazeer, 2020) and plain."""

from torch import Tensor, nn

from kvasir.layers.activation import Activation, gated, plain
from kvasir.layers.linear import ColumnLinear, RowLinear
from kvasir.layers.parameter import Placement


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x))"""

    def __init__(self, size: int, inner: int, activation: Activation, *, bias: bool, placement: Placement) -> None:
        super().__init__()
        self.gate_up_proj = ColumnLinear(
            size, {"gate_proj": inner, "up_proj": inner}, bias=bias, placement=placement.at("gate_up_proj")
        )
        self.down_proj = RowLinear(inner, size, bias=bias, placement=placement.at("down_proj"))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:  # [T, size]
        return self.down_proj(gated(self.gate_up_proj(x), self.activation))  # type: ignore[no-any-return]


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
