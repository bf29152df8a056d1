"""Products with quantised weights, chosen when a layer has been loaded."""

from dataclasses import replace
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
    def __call__(self, x: Tensor) -> Tensor:  # [T, inputs] → [T, outputs], in the dtype of x
        ...


class DequantisedProduct:
    """Dequantises the weight in each call: the reference, and for layouts without a kernel."""

    def __init__(self, weight: QuantisedWeight, placement: Placement | None = None) -> None:
        invariant = placement is not None and placement.batch_invariant
        self._kernels = kernels_for(placement.device, placement.dtype) if placement and invariant else None
        self._order = weight.order
        outputs = max(1, MAX_DEQUANTISED_NUMBERS // weight.inputs)
        firsts = range(0, weight.outputs, outputs)
        self._parts = [_outputs_of(weight, slice(first, first + outputs)) for first in firsts]

    def __call__(self, x: Tensor) -> Tensor:
        rows = x if self._order is None else x[:, self._order]
        products = [self._multiply(rows, part.dequantised(x.dtype)) for part in self._parts]
        return products[0] if len(products) == 1 else torch.cat(products, 1)

    def _multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight) if self._kernels is None else self._kernels.linear(x, weight, None)


def _outputs_of(weight: QuantisedWeight, some: slice) -> QuantisedWeight:
    zeros = None if weight.zeros is None else weight.zeros[some]
    return replace(weight, numbers=weight.numbers[some], scales=weight.scales[some], zeros=zeros)


def new_product(weight: QuantisedWeight, placement: Placement) -> Product:
    """Return the fastest product of this device for a layer's part of this rank."""
    kernels = kernels_for(placement.device, placement.dtype)
    if kernels is None:
        return device_product(weight, placement) or DequantisedProduct(weight, placement)
    if not takes(weight.numbers, weight.scales):
        return DequantisedProduct(weight, placement)
    fields = (weight.numbers, weight.scales, weight.zeros, weight.table, weight.order, weight.quantise_inputs)
    return PackedProduct(kernels, *fields)
