"""Products with quantised weights: chosen once for each layer, when it has been loaded."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir.kernels.cpu import kernels_for
from kvasir.kernels.cpu.packed_product import PackedProduct, takes
from kvasir.layers.parameter import Placement
from kvasir.layers.quantised.device_product import device_product
from kvasir.layers.quantised.weight import QuantisedWeight

MAX_DEQUANTISED_NUMBERS: Final = 2**22  # at a time


class Product(Protocol):
    """A product keeps the weight in its own layout."""

    def __call__(self, x: Tensor) -> Tensor:  # [T, inputs] → [T, outputs], in the dtype of x
        ...


class DequantisedProduct:
    """The reference, and the product of layouts that no kernel reads: dequantises the weight in each call."""

    def __init__(self, weight: QuantisedWeight, multiply: Callable[[Tensor, Tensor], Tensor] = F.linear) -> None:
        self._multiply = multiply
        self._order = weight.order
        outputs = max(1, MAX_DEQUANTISED_NUMBERS // weight.inputs)
        self._parts = [
            _outputs_of(weight, slice(first, first + outputs)) for first in range(0, weight.outputs, outputs)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        rows = x if self._order is None else x[:, self._order]
        return torch.cat([self._multiply(rows, part.dequantised(x.dtype)) for part in self._parts], 1)


def _outputs_of(weight: QuantisedWeight, some: slice) -> QuantisedWeight:
    zeros = None if weight.zeros is None else weight.zeros[some]
    return replace(weight, numbers=weight.numbers[some], scales=weight.scales[some], zeros=zeros)


def new_product(weight: QuantisedWeight, placement: Placement) -> Product:
    """Return the fastest product of this device for a layer's part of this rank."""
    kernels = kernels_for(placement.device, placement.dtype)
    if kernels is None:
        return device_product(weight, placement) or DequantisedProduct(weight)
    if takes(weight.numbers, weight.scales):
        fields = (weight.numbers, weight.scales, weight.zeros, weight.table, weight.order, weight.quantise_inputs)
        return PackedProduct(kernels, *fields)
    return DequantisedProduct(weight, partial(kernels.linear, bias=None) if placement.batch_invariant else F.linear)
