"""Matrix products with weights: whole on each rank, or split over the ranks by outputs or by inputs."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar, Final

import torch.nn.functional as F
from torch import Tensor, nn

from kvasir.layers.linear_method import (
    LinearShape,
    can_pack,
    invariant_kernels,
    multiply_packed,
    new_method,
    pack,
)
from kvasir.layers.parameter import (
    WHOLE,
    Layout,
    Placement,
    Split,
    StackedLoader,
    new_parameter,
    parameter_with,
)

_NO_COPIES: Final = MappingProxyType[str, int]({})


class Linear(nn.Module):
    """y = x Wᵀ + b, whole on each rank.

    `outputs` as a mapping names the ranges of output rows that come as tensors of their own. `tied` is a weight
    that belongs to another layer. `copies` are those of Layout.
    """

    split_dim: ClassVar[int | None] = None
    """The dimension of the weight [outputs, inputs] that the tensor ranks split; None: each holds all."""

    weight: nn.Parameter

    def __init__(
        self,
        inputs: int,
        outputs: int | Mapping[str, int],
        *,
        bias: bool,
        placement: Placement,
        transposed: bool = False,
        tied: nn.Parameter | None = None,
        copies: Mapping[str, int] = _NO_COPIES,
    ) -> None:
        super().__init__()
        self.name = placement.name
        self.method = new_method(placement)
        self._group = group = placement.parallel.tensor
        self.ranks = group.size
        shards = {WHOLE: outputs} if isinstance(outputs, int) else outputs
        self._outputs = sum(shards.values())
        split = None if self.split_dim is None else Split(self.split_dim, group.rank, group.size)
        shape = LinearShape(inputs, shards, split, copies, transposed)
        parameters = self.method.parameters(shape, placement) if tied is None else {"weight": tied}
        for name, parameter in parameters.items():
            self.register_parameter(name, parameter)
        self.num_weights = sum(parameter.numel() for parameter in parameters.values())
        """That this rank multiplies by."""
        self.bias: nn.Parameter | None = None
        if bias:
            of_rows = split if self.split_dim == 0 else None
            self.bias = new_parameter(
                self._outputs, placement=placement, shards=shards, split=of_rows, copies=copies
            )

    def forward(self, x: Tensor) -> Tensor:  # [T, inputs] → [T, outputs]
        return self.method.apply(self, x, self.bias)


class ColumnLinear(Linear):
    """Each rank computes its part of the outputs: [T, inputs] → [T, outputs of this rank].

    `copies` maps shards to the number of neighbouring ranks that compute the same part (K and V heads that are
    fewer than the ranks).
    """

    split_dim = 0


class RowLinear(Linear):
    """Each rank multiplies its part of the inputs; the sum over the ranks is the output of each.

    The bias is added once, after the sum.
    """

    split_dim = 1

    def forward(self, x: Tensor) -> Tensor:  # [T, inputs of this rank] → [T, outputs]
        if self._group.size == 1:
            return self.method.apply(self, x, self.bias)
        total = self._group.all_reduce(self.method.apply(self, x, None))
        return total if self.bias is None else total.add_(self.bias)


class VocabHead(Linear):
    """The logits of all tokens. Each rank multiplies by its rows; then all ranks gather all logits.

    If the vocabulary is not a multiple of the ranks, the last rows are padding, and their logits are cut off.
    """

    split_dim = 0

    def forward(self, x: Tensor) -> Tensor:  # [R, inputs] → [R, vocabulary]
        logits = self.method.apply(self, x, self.bias)
        if self._group.size == 1:
            return logits
        return self._group.all_gather(logits, 1)[:, : self._outputs].contiguous()


class StackedLinear(nn.Module):
    """Equal layers without biases, whose weights are one tensor: [layers of this rank, outputs, inputs].

    `own` is the range of the `count` layers that this rank holds; `split` is of each layer's weight.
    """

    weight: nn.Parameter

    def __init__(
        self, inputs: int, outputs: Mapping[str, int], *, count: int, own: range, split: Split, placement: Placement
    ) -> None:
        super().__init__()
        self.name = placement.name
        layout = Layout((sum(outputs.values()), inputs), outputs, split)
        loader = StackedLoader(layout, count, own)
        self.weight = parameter_with(loader, (len(own), *layout.local_shape), placement)
        self._kernels = invariant_kernels(placement)
        self._packs = can_pack(placement)
        self._packed: list[Tensor] = []

    def one(self, index: int, x: Tensor) -> Tensor:
        """[T, inputs] → [T, outputs], by one of this rank's layers"""
        if self._kernels is not None:
            return self._kernels.linear(x, self.weight[index], None)
        if self._packed:
            return multiply_packed(x, self._packed[index], None)
        return F.linear(x, self.weight[index])

    def grouped(self, x: Tensor, ends: Tensor) -> Tensor:
        """[T, inputs] → [T, outputs]: rows up to ends[0] by the first layer, and so on; no wait for the device.

        Rows behind the last end are undefined.
        """
        return F.grouped_mm(x, self.weight.mT, offs=ends)

    def finish(self) -> None:
        if self._packs:
            self._packed = [pack(weight) for weight in self.weight]
            del self.weight


def finish_layers(layers: Iterable[nn.Module]) -> None:
    """Convert the weights of a loaded model's layers to the form that they compute with."""
    for layer in layers:
        if isinstance(layer, Linear):
            layer.method.finish(layer)
        elif isinstance(layer, StackedLinear):
            layer.finish()
