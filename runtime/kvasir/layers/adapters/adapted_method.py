"""AdaptedMethod: a linear layer's product, and those of the adapters of the step's tokens."""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from kvasir.layers.adapter_slots import AdapterSlots
from kvasir.layers.adapters.adapter_matrices import AdapterMatrices
from kvasir.layers.linear_method import LinearMethod, invariant_kernels
from kvasir.layers.linear_shape import LinearShape
from kvasir.layers.parameter import Placement


class AdaptedMethod:
    """The products of adapters are added before a row layer's all-reduce, so A may be split by inputs."""

    def __init__(self, base: LinearMethod, shape: LinearShape, placement: Placement, slots: AdapterSlots) -> None:
        self.shape = shape
        self.dtype = placement.dtype
        self._base = base
        self._slots = slots
        self._own: dict[int, AdapterMatrices] = {}  # by slot
        kernels = invariant_kernels(placement)
        self._multiply = F.linear if kernels is None else kernels.linear

    def hold(self, slot: int, matrices: AdapterMatrices | None) -> None:
        """Put an adapter's matrices into a slot; None if it does not adapt this layer."""
        if matrices is None:
            self._own.pop(slot, None)
        else:
            self._own[slot] = matrices

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        return self._base.parameters(shape, placement)

    def finish(self, layer: nn.Module) -> None:
        self._base.finish(layer)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        product = self._base.apply(layer, x, bias)
        for slot, places in self._slots.groups:
            if (own := self._own.get(slot)) is not None:
                self._add(product, x, own, places)
        return product

    def plain_weight(self, layer: nn.Module) -> Tensor | None:
        return None  # a kernel that reads it would leave out the adapters

    def _add(self, product: Tensor, x: Tensor, own: AdapterMatrices, places: Tensor | None) -> None:
        if places is None:
            product.add_(self._multiply(self._multiply(x, own.down, None), own.up, None))
        else:
            shrunk = self._multiply(x[places], own.down, None)  # [N, ranks]
            product.index_add_(0, places, self._multiply(shrunk, own.up, None))
