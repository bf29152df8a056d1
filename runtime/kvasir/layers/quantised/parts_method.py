"""The linear method of a fused layer whose parts have different formats, such as q, k and v in files of Q4_K_M."""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from kvasir.layers.layout import NO_COPIES, WHOLE
from kvasir.layers.linear_method import LinearMethod
from kvasir.layers.linear_shape import LinearShape
from kvasir.layers.parameter import Placement

_PARTS: Final = "parts"


def part_name(parameter: str, shard: str) -> str:
    """Return the name of a parameter that holds one shard only.

    >>> part_name("weight", "v_proj")
    'weight_of_v_proj'
    """
    return f"{parameter}_of_{shard}"


class PartsMethod:
    def __init__(self, methods: Mapping[str, LinearMethod]) -> None:
        self._methods = methods  # by shard, in the order of the outputs

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        return {
            part_name(name, shard): parameter
            for shard, method in self._methods.items()
            for name, parameter in method.parameters(part_shape(shape, shard), placement).items()
        }

    def finish(self, layer: nn.Module) -> None:
        parts = []
        for shard, method in self._methods.items():
            part = _Part(method)
            for name, parameter in list(layer.named_parameters(recurse=False)):
                own = name.removesuffix(part_name("", shard))
                if own != name:
                    part.register_parameter(own, parameter)
                    delattr(layer, name)
            method.finish(part)
            parts.append(part)
        layer.__dict__[_PARTS] = parts  # not registered: the layer has no parameters of its own any more

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        parts: list[_Part] = layer.__dict__[_PARTS]
        result = torch.cat([part.method.apply(part, x, None) for part in parts], 1)
        return result if bias is None else result.add_(bias)

    def plain_weight(self, layer: nn.Module) -> Tensor | None:
        return None


class _Part(nn.Module):
    def __init__(self, method: LinearMethod) -> None:
        super().__init__()
        self.method = method


def part_shape(shape: LinearShape, shard: str) -> LinearShape:
    copies = {WHOLE: shape.copies[shard]} if shard in shape.copies else NO_COPIES
    return LinearShape(
        shape.inputs, {WHOLE: shape.outputs[shard]}, shape.split, copies, shape.transposed, stack=shape.stack
    )


def parts_of(layer: nn.Module) -> list[nn.Module]:
    """Return the modules that hold a layer's products: the layer itself, or its parts."""
    return list(layer.__dict__.get(_PARTS, (layer,)))
