"""Weights of 4 bits of GGUF."""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from kvasir.hub.quantisation.layer_formats import Nibbles
from kvasir.layers.linear_shape import INPUTS, OUTPUTS, LinearShape
from kvasir.layers.parameter import Placement
from kvasir.layers.quantised.weight import QuantisedWeight

# the format's own, of IQ4_NL and IQ4_XS
IQ4_NL: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


class NibblesPacking:
    def __init__(self, form: Nibbles) -> None:
        self._form = form

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        groups = INPUTS.by(self._form.group)
        names = ("weight_scale", "weight_zero") if self._form.zeros else ("weight_scale",)
        return {
            "weight": shape.parameter(placement, OUTPUTS, INPUTS.by(2), dtype=torch.uint8),
            **{name: shape.parameter(placement, OUTPUTS, groups, dtype=torch.float32) for name in names},
        }

    def weight(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> QuantisedWeight:
        numbers = tensors["weight"]
        table = torch.tensor(IQ4_NL, dtype=torch.float32, device=numbers.device) if self._form.table else None
        return QuantisedWeight(numbers, tensors["weight_scale"], tensors.get("weight_zero"), table)
