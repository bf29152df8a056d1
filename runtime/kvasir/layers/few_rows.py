"""Fused products of a few rows on a GPU (kernels/triton/few_rows)."""

from collections.abc import Sequence
from typing import Final

from torch import Tensor, nn

from kvasir.kernels.triton.device_support import DTYPES, can_compile
from kvasir.kernels.triton.row_tiling import MAX_ROWS, MULTIPLE_OF
from kvasir.layers.activation import KERNELS
from kvasir.layers.linear import Linear
from kvasir.layers.mlp import GatedMLP
from kvasir.layers.norm import RMSNorm

# Tests set "cpu" for Triton's interpreter.
_KERNEL_DEVICE: Final = "cuda"


class FewRows:
    max_rows: Final = MAX_ROWS

    def normed(self, x: Tensor, norm: RMSNorm, linear: Linear) -> Tensor:
        # linear(norm(x)): [T, inputs] → [T, outputs]
        from kvasir.kernels.triton.few_rows.row_products import RowNorm, product  # imports triton

        return product(x, _weight(linear), linear.bias, norm=RowNorm(norm.weight, norm.eps, norm.shift))

    def normed_gate(self, x: Tensor, norm: RMSNorm, mlp: GatedMLP) -> Tensor:
        # activation(gate(norm(x))) * up(norm(x)): [T, size] → [T, inner]
        from kvasir.kernels.triton.few_rows.row_products import RowNorm, product  # imports triton

        linear, around = mlp.gate_up_proj, RowNorm(norm.weight, norm.eps, norm.shift)
        return product(x, _weight(linear), linear.bias, norm=around, activation=KERNELS[mlp.activation])

    def add_product_(self, total: Tensor, x: Tensor, linear: Linear) -> None:  # total [T, outputs] += linear(x)
        from kvasir.kernels.triton.few_rows.row_products import add_product_  # imports triton

        add_product_(total, x, _weight(linear), linear.bias)


def _weight(linear: Linear) -> Tensor:
    weight = linear.plain_weight()
    assert weight is not None, "few_rows_for checks this"
    return weight


def few_rows_for(linears: Sequence[Linear], norms: Sequence[nn.Module], mlp: nn.Module) -> FewRows | None:
    """Return None if the kernel does not support the layers or the device."""
    if not isinstance(mlp, GatedMLP) or mlp.activation not in KERNELS:
        return None
    if not all(isinstance(norm, RMSNorm) for norm in norms):
        return None
    for linear in (*linears, mlp.gate_up_proj, mlp.down_proj):
        weight = linear.plain_weight()
        if weight is None or linear.ranks > 1:
            return None
        if weight.device.type != _KERNEL_DEVICE or weight.dtype not in DTYPES:
            return None
        if weight.shape[1] % MULTIPLE_OF or not can_compile(weight.device):
            return None
    return FewRows()
