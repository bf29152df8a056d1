"""Matrix products with weights: whole on each rank, or split by outputs or inputs."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from kvasir.layers.adapters.adapted_method import AdaptedMethod
from kvasir.layers.layout import NO_COPIES, WHOLE, Split
from kvasir.layers.linear_method import LinearMethod, new_method, unquantised_method
from kvasir.layers.linear_shape import OUTPUTS, LinearShape, Stack
from kvasir.layers.parameter import Placement


class Linear(nn.Module):
    """y = x Wᵀ + b, whole on each rank. `outputs` may name shards; `tied` is a weight of another layer."""

    split_dim: ClassVar[int | None] = None  # of the weight [outputs, inputs]
    takes_adapters: ClassVar[bool] = True

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
        copies: Mapping[str, int] = NO_COPIES,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.name = placement.name
        self._group = group = placement.parallel.tensor
        self.ranks = group.size
        shards = {WHOLE: outputs} if isinstance(outputs, int) else outputs
        self._outputs = sum(shards.values())
        split = None if self.split_dim is None else Split(self.split_dim, group.rank, group.size)
        shape = LinearShape(inputs, shards, split, copies, transposed, groups=groups)
        # An embedding has a plain weight in every scheme.
        plain = tied is not None and not placement.scheme.reads_tied_head
        self.method: LinearMethod = unquantised_method(placement) if plain else new_method(shape, placement)
        if placement.adapters is not None and self.takes_adapters:
            self.method = AdaptedMethod(self.method, shape, placement, placement.adapters)
        parameters = self.method.parameters(shape, placement) if tied is None else {"weight": tied}
        for name, parameter in parameters.items():
            self.register_parameter(name, parameter)
        self.num_weights = shape.num_weights
        self.bias = shape.parameter(placement, OUTPUTS) if bias else None

    def forward(self, x: Tensor) -> Tensor:  # [T, inputs] → [T, outputs]
        return self.method.apply(self, x, self.bias)

    def plain_weight(self) -> Tensor | None:
        return self.method.plain_weight(self)


class ColumnLinear(Linear):
    """Each rank computes its part of the outputs."""

    split_dim = 0


class RowLinear(Linear):
    """Each rank multiplies its part of the inputs, and the ranks add up the products."""

    split_dim = 1

    def forward(self, x: Tensor) -> Tensor:  # [T, own inputs] → [T, outputs]
        if self._group.size == 1:
            return self.method.apply(self, x, self.bias)
        total = self._group.all_reduce(self.method.apply(self, x, None))
        return total if self.bias is None else total.add_(self.bias)  # once, not by each rank


class VocabHead(Linear):
    """The output layer. Each rank computes some of the logits; then each gathers all."""

    split_dim = 0
    takes_adapters = False  # it gets only the tokens before sampled ones

    def forward(self, x: Tensor) -> Tensor:
        logits = self.method.apply(self, x, self.bias)
        if self._group.size == 1:
            return logits
        # The last ranks may have padding.
        return self._group.all_gather(logits, 1)[:, : self._outputs].contiguous()


class StackedLinear(nn.Module):
    """Equal layers, in stacked parameters: [own layers, …].

    `transposed`: a checkpoint's tensor of all layers is [layers, inputs, outputs].
    """

    weight: nn.Parameter

    def __init__(
        self,
        inputs: int,
        outputs: Mapping[str, int],
        *,
        stack: Stack,
        split: Split,
        placement: Placement,
        bias: bool = False,
        transposed: bool = False,
    ) -> None:
        super().__init__()
        self.name = placement.name
        self._num_own = len(stack.own)
        shape = LinearShape(inputs, outputs, split, transposed=transposed, stack=stack)
        self.method = new_method(shape, placement)
        for name, parameter in self.method.parameters(shape, placement).items():
            self.register_parameter(name, parameter)
        self.bias = shape.parameter(placement, OUTPUTS) if bias else None
        # The ranks that share the inputs add up their products: one of them adds the bias.
        self._adds_bias = bias and (split.dim == OUTPUTS.dim or split.rank == 0)

    @cached_property
    def _layers(self) -> "list[_StackedLayer]":
        # Not registered: the parameters would be listed twice.
        return [_StackedLayer(self._parameters, index) for index in range(self._num_own)]

    def layers(self) -> Sequence[nn.Module]:
        return self._layers

    def one(self, index: int, x: Tensor) -> Tensor:
        layer = self._layers[index]
        return self.method.apply(layer, x, layer.bias if self._adds_bias else None)

    def added_bias(self) -> Tensor | None:  # [own layers, outputs]
        return self.bias if self._adds_bias else None

    def plain_weight(self) -> Tensor | None:
        return self.method.plain_weight(self)

    def finish(self) -> None:
        for layer in self._layers:
            self.method.finish(layer)
        if self.plain_weight() is None:  # each layer holds a converted copy
            self._parameters.clear()


class _StackedLayer(nn.Module):
    bias: nn.Parameter | None

    def __init__(self, stacked: Mapping[str, nn.Parameter | None], index: int) -> None:
        super().__init__()
        for name, parameter in stacked.items():
            own = None if parameter is None else nn.Parameter(parameter.data[index], requires_grad=False)
            self.register_parameter(name, own)


def grouped_product(weight: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """Multiply rows of x [T, inputs] up to ends[0] by weight[0], up to ends[1] by weight[1], and so on.

    weight: [layers, outputs, inputs]. Rows after the last end are undefined.
    """
    return F.grouped_mm(x, weight.mT, offs=ends)


def finish_layers(layers: Iterable[nn.Module]) -> None:
    for layer in layers:
        if isinstance(layer, Linear):
            layer.method.finish(layer)
        elif isinstance(layer, StackedLinear):
            layer.finish()
