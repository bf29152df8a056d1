"""Weights of 8 bits, four of them in an int32 along the inputs, and a scale for each output.

The example of docs/design/adding-a-linear-method.md.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvasir.layers.linear_method import LinearMethod, unquantised_method
from kvasir.layers.linear_shape import INPUTS, OUTPUTS, LinearShape
from kvasir.layers.parameter import Placement


class PackedInt8Method:
    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        return {
            "weight_packed": shape.parameter(placement, OUTPUTS, INPUTS.by(4), dtype=torch.int32),
            "weight_scale": shape.parameter(placement, OUTPUTS),
        }

    def finish(self, layer: nn.Module) -> None:
        layer.weight8 = layer.get_parameter("weight_packed").view(torch.int8)  # [outputs, inputs]
        del layer.weight_packed

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        numbers: Tensor = layer.weight8  # type: ignore[assignment]
        product = F.linear(x, numbers.to(x.dtype)) * layer.get_parameter("weight_scale")
        return product if bias is None else product.add_(bias)

    def plain_weight(self, layer: nn.Module) -> Tensor | None:
        return None  # no other kernel can read it


def choose_method(shape: LinearShape, placement: Placement) -> LinearMethod:
    """Return the method of a layer, by its name."""
    ignored = placement.scheme.config["ignored"]
    return unquantised_method(placement) if placement.name in ignored else PackedInt8Method()
