"""AdaptedMethod: a linear layer's product, and those of the adapters of the step's tokens."""

from collections.abc import Mapping

from torch import Tensor, nn

from kvasir.layers.adapter_slots import AdapterSlots
from kvasir.layers.adapters.slot_matrices import slot_matrices
from kvasir.layers.linear_method import LinearMethod
from kvasir.layers.linear_shape import LinearShape
from kvasir.layers.parameter import Placement


class AdaptedMethod:
    """The products of adapters are added before a row layer's all-reduce, so A may be split by inputs."""

    def __init__(self, base: LinearMethod, shape: LinearShape, placement: Placement, slots: AdapterSlots) -> None:
        self.shape = shape
        self.dtype = placement.dtype
        self.slots = slot_matrices(shape, placement, slots)
        self._base = base

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        return self._base.parameters(shape, placement)

    def finish(self, layer: nn.Module) -> None:
        self._base.finish(layer)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        product = self._base.apply(layer, x, bias)
        self.slots.add_(product, x)
        return product

    def plain_weight(self, layer: nn.Module) -> Tensor | None:
        return None  # a kernel that reads it would leave out the adapters
