"""Products with quantised weights: chosen once for each layer, when it has been loaded."""

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from kvasir.kernels.cpu import kernels_for
from kvasir.layers.parameter import Placement
from kvasir.layers.quantised.weight import QuantisedWeight


class Product(Protocol):
    """A product keeps the weight in its own layout."""

    def __call__(self, x: Tensor) -> Tensor:  # [T, inputs] → [T, outputs], in the dtype of x
        ...


class DequantisedProduct:
    """The reference, and the product of layouts that no kernel reads: dequantises the weight in each call."""

    def __init__(self, weight: QuantisedWeight, placement: Placement | None = None) -> None:
        self._weight = weight
        invariant = placement is not None and placement.batch_invariant
        self._kernels = kernels_for(placement.device, placement.dtype) if invariant else None

    def __call__(self, x: Tensor) -> Tensor:
        rows = x if self._weight.order is None else x[:, self._weight.order]
        weight = self._weight.dequantised(x.dtype)
        return F.linear(rows, weight) if self._kernels is None else self._kernels.linear(rows, weight, None)


def new_product(weight: QuantisedWeight, placement: Placement) -> Product:
    """Return the fastest product of this device for a layer's part of this rank."""
    return DequantisedProduct(weight, placement)
