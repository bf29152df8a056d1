"""Products with quantised weights: chosen once for each layer, when it has been loaded."""

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from kvasir.layers.parameter import Placement
from kvasir.layers.quantised.weight import QuantisedWeight


class Product(Protocol):
    """A product keeps the weight in its own layout."""

    def __call__(self, x: Tensor) -> Tensor:  # [T, inputs] → [T, outputs], in the dtype of x
        ...


class DequantisedProduct:
    """The reference, and the product of layouts that no kernel reads: dequantises the weight in each call."""

    def __init__(self, weight: QuantisedWeight) -> None:
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        rows = x if self._weight.order is None else x[:, self._weight.order]
        return F.linear(rows, self._weight.dequantised(x.dtype))


def new_product(weight: QuantisedWeight, placement: Placement) -> Product:
    """Return the fastest product of this device for a layer's part of this rank."""
    return DequantisedProduct(weight)
