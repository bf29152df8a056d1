"""Weights of 8 bits: FP8 of all producers, int8 of compressed-tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from kvasir.hub.quantisation.layer_formats import Numbers
from kvasir.layers.linear_shape import INPUTS, OUTPUTS, SHARDS, LinearShape
from kvasir.layers.parameter import Placement
from kvasir.layers.quantised.packings.scales import ScaleLoader, ShardLoader, equal_groups, of_rows
from kvasir.layers.quantised.weight import QuantisedWeight


class NumbersPacking:
    def __init__(self, form: Numbers) -> None:
        self._form = form

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        form, (outputs, inputs) = self._form, self._form.block
        axes = {
            "tensor": (SHARDS,),
            "channel": (OUTPUTS,),
            "group": (OUTPUTS, INPUTS.by(inputs)),
            "block": (OUTPUTS.by(outputs), INPUTS.by(inputs)),
        }
        loader = ShardLoader if form.granularity == "tensor" else ScaleLoader
        return {
            "weight": shape.parameter(placement, OUTPUTS, INPUTS, dtype=getattr(torch, form.dtype)),
            form.scale: shape.parameter(placement, *axes[form.granularity], dtype=torch.float32, loader=loader),
        }

    def weight(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> QuantisedWeight:
        form, numbers, scales = self._form, tensors["weight"], tensors[self._form.scale]
        rows = shape.own_rows.values()
        if form.granularity == "tensor":
            scales = of_rows(scales, rows)
        elif form.granularity == "block":
            scales = of_rows(scales, rows, form.block[0])
        if scales.dim() == 1:
            scales = scales[:, None]
        if scales.shape[1] > 1:
            scales = equal_groups(scales, numbers.shape[1], form.block[1])
        return QuantisedWeight(numbers, scales * form.unit, quantise_inputs=form.quantise_inputs)
