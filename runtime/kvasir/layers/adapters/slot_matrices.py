"""SlotMatrices: the matrices of each slot for one linear layer, on a CPU and on a GPU."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir.layers.adapter_slots import AdapterSlots
from kvasir.layers.adapters.adapter_matrices import AdapterMatrices
from kvasir.layers.linear_method import invariant_kernels
from kvasir.layers.linear_shape import INPUTS, OUTPUTS, LinearShape
from kvasir.layers.parameter import Placement


class SlotMatrices(Protocol):
    def hold(self, slot: int, matrices: AdapterMatrices | None) -> None:
        """Put an adapter's matrices into a slot; None if it does not adapt this layer."""
        ...

    def add_(self, product: Tensor, x: Tensor) -> None:
        """Add the products of the step's adapters: product [T, outputs], x [T, inputs]."""
        ...


def slot_matrices(shape: LinearShape, placement: Placement, slots: AdapterSlots) -> SlotMatrices:
    return DeviceMatrices(shape, placement, slots) if slots.on_device else HostMatrices(placement, slots)


class HostMatrices:
    """Refers to matrices in host memory. Rows of each adapter are multiplied together, and others not touched."""

    def __init__(self, placement: Placement, slots: AdapterSlots) -> None:
        self._slots = slots
        self.held: dict[int, AdapterMatrices] = {}
        kernels = invariant_kernels(placement)
        self._multiply = F.linear if kernels is None else kernels.linear

    def hold(self, slot: int, matrices: AdapterMatrices | None) -> None:
        if matrices is None:
            self.held.pop(slot, None)
        else:
            self.held[slot] = matrices

    def add_(self, product: Tensor, x: Tensor) -> None:
        for slot, places in self._slots.groups:
            if (own := self.held.get(slot)) is None:
                continue
            if places is None:
                product.add_(self._multiply(self._multiply(x, own.down, None), own.up, None))
            else:
                shrunk = self._multiply(x[places], own.down, None)  # [N, ranks]
                product.index_add_(0, places, self._multiply(shrunk, own.up, None))


class DeviceMatrices:
    """Copies matrices to fixed addresses, for CUDA graphs: those of all slots are one tensor."""

    def __init__(self, shape: LinearShape, placement: Placement, slots: AdapterSlots) -> None:
        self._slots = slots
        outputs, inputs = shape.layout(OUTPUTS, INPUTS).local_shape
        ranks = len(shape.outputs) * slots.max_rank
        self.down = torch.zeros(slots.count, ranks, inputs, dtype=placement.dtype, device=placement.device)
        self.up = torch.zeros(slots.count, outputs, ranks, dtype=placement.dtype, device=placement.device)

    def hold(self, slot: int, matrices: AdapterMatrices | None) -> None:
        # The ranks that are not filled are computed too. In old numbers, 0 times NaN would be NaN.
        self.down[slot].zero_()
        self.up[slot].zero_()
        if matrices is not None:
            ranks = len(matrices.down)
            self.down[slot, :ranks].copy_(matrices.down, non_blocking=True)
            self.up[slot, :, :ranks].copy_(matrices.up, non_blocking=True)

    def add_(self, product: Tensor, x: Tensor) -> None:
        if self._slots.there is None:
            return
        from kvasir.kernels.triton.adapters.adapter_products import add_products_  # imports triton

        add_products_(product, x, self.down, self.up, *self._slots.blocks(x.dtype))
