"""Launches the kernel for a few rows, after checks of shapes and dtypes."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from kvasir.kernels.fused_operations import Activation
from kvasir.kernels.triton.device_support import tiles_for
from kvasir.kernels.triton.few_rows.row_product import multiply_row
from kvasir.kernels.triton.row_tiling import row_constants, row_tile
from kvasir.kernels.triton.tiling import OPTIONS

_ACTIVATIONS = {Activation.SILU: "silu", Activation.GELU_TANH: "gelu_tanh"}


@dataclass(frozen=True)
class RowNorm:
    weight: Tensor  # [inputs]
    eps: float
    shift: float  # added to the weight


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    norm: RowNorm | None = None,
    activation: Activation | None = None,
) -> Tensor:
    """Return norm(x) Wᵀ + b, or activation(gate) * up of its halves: [T, inputs] → [T, outputs]."""
    outputs = weight.shape[0] if activation is None else weight.shape[0] // 2
    out = torch.empty(x.shape[0], outputs, dtype=x.dtype, device=x.device)
    _launch(out, x, weight, bias, norm, activation, adds=False)
    return out


def add_product_(total: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    # total [T, outputs] += x Wᵀ + b, rounded before and after the addition; x [T, inputs]
    _launch(total, x, weight, bias, None, None, adds=True)


def _launch(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: RowNorm | None,
    activation: Activation | None,
    *,
    adds: bool,
) -> None:
    rows, outputs = out.shape
    inputs = x.shape[1]
    expected = (outputs if activation is None else 2 * outputs, inputs)
    if x.shape[0] != rows or weight.shape != expected or x.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError(f"the kernel does not multiply {list(x.shape)} by {list(weight.shape)} here")
    others = [each for each in (weight, out, bias, None if norm is None else norm.weight) if each is not None]
    if not all(each.dtype == x.dtype and each.stride(-1) == 1 for each in others) or not weight.is_contiguous():
        raise TypeError(f"the kernel takes contiguous weights of {x.dtype}")
    tiles = tiles_for(x.device).row_product
    tile = row_tile(tiles, inputs, gated=activation is not None, adds=adds)
    multiply_row[triton.cdiv(outputs, tile.outputs), rows](
        out,
        x,
        weight,
        weight if bias is None else bias,
        weight if norm is None else norm.weight,
        outputs,
        inputs,
        0.0 if norm is None else norm.eps,
        0.0 if norm is None else norm.shift,
        out.stride(0),
        x.stride(0),
        **row_constants(
            tile,
            normed=norm is not None,
            activation="" if activation is None else _ACTIVATIONS[activation],
            adds=adds,
            biased=bias is not None,
            even=inputs % tile.inputs == 0,
        ),
        num_warps=tile.num_warps,
        **OPTIONS,
    )
