"""The linear method of all quantised formats."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn

from kvasir.config.options import ConfigError
from kvasir.layers.linear_shape import INPUTS, OUTPUTS, LinearShape
from kvasir.layers.parameter import Placement
from kvasir.layers.quantised.product import Product, new_product
from kvasir.layers.quantised.weight import QuantisedWeight


class Packing(Protocol):
    # Without state of a layer: stacked layers (experts) share a packing.

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        """Return the parameters by name in checkpoints. Raises UnevenSplit."""
        ...

    def weight(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> QuantisedWeight:
        """Return the weight of a layer's loaded parameters. Raises ConfigError."""
        ...


class QuantisedMethod:
    def __init__(self, packing: Packing, shape: LinearShape, placement: Placement) -> None:
        self._packing = packing
        self._shape = shape
        self._placement = placement

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        return self._packing.parameters(shape, placement)

    def finish(self, layer: nn.Module) -> None:
        own = layer.named_parameters(recurse=False)
        tensors = {name: parameter.data for name, parameter in own if name != "bias"}
        for name in tensors:
            delattr(layer, name)
        weight = self._packing.weight(tensors, self._shape)
        tensors.clear()
        self._check_sizes(weight)
        layer.product = new_product(weight, self._placement)  # type: ignore[assignment]

    def _check_sizes(self, weight: QuantisedWeight) -> None:
        # The last word may be filled up.
        outputs, inputs = self._shape.layout(OUTPUTS, INPUTS).local_shape
        packed = max(len(each) for each in (weight.numbers, weight.scales, weight.zeros) if each is not None)
        if (packed, weight.inputs) != (outputs, inputs):
            raise ConfigError(
                f"{self._placement.name} has {outputs} outputs and {inputs} inputs here, and its format packs "
                f"{packed} and {weight.inputs}: use another quantised version of the model"
            )

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        product: Product = layer.__dict__["product"]
        result = product(x)
        return result if bias is None else result.add_(bias)

    def plain_weight(self, layer: nn.Module) -> Tensor | None:
        return None
