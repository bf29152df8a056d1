"""A linear method that keeps weights in bfloat16, for models that compute in float32: half the memory.

The example of docs/design/adding-a-linear-method.md.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvasir.layers.linear_method import LinearShape
from kvasir.layers.parameter import Placement, new_parameter


class Bfloat16Method:
    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        weight = new_parameter(
            sum(shape.outputs.values()),
            shape.inputs,
            placement=replace(placement, dtype=torch.bfloat16),  # its loader converts the checkpoint's numbers
            shards=shape.outputs,
            split=shape.split,
            copies=shape.copies,
            transposed=shape.transposed,
        )
        return {"weight": weight}

    def finish(self, layer: nn.Module) -> None:
        """The weight is in its final form."""

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, layer.get_parameter("weight").to(x.dtype), bias)
