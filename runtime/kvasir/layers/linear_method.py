"""How a linear layer keeps its weight and multiplies by it: plain, by our kernel, or packed for a CPU.

Each layer owns one method. A new one (a quantised format for example) is a class here and a line in `new_method`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvasir.kernels.cpu import Kernels, kernels_for
from kvasir.layers.parameter import Placement, Split, new_parameter

_PACKED_ROWS = 16
"""The batch that oneDNN's packed layout is chosen for; seen to be as good for 1 row as for 1,024."""

_ROWS_FOR_ONE = 4
"""One row is computed as so many, which takes less time (oneDNN, Zen 4, 768 to 6,144 wide, 239 MB in all, several
runs: 8.4 to 9.9 ms for a row, 8.0 to 8.4 ms for four). Two are not: they would have to be copied."""


@dataclass(frozen=True)
class LinearShape:
    """The whole layer, and the part of it that this rank holds.

    `outputs` maps shards (see Layout) to their sizes. `split` is of the weight [outputs, inputs].
    """

    inputs: int
    outputs: Mapping[str, int]
    split: Split | None = None
    copies: Mapping[str, int] = field(default_factory=dict)
    transposed: bool = False


class LinearMethod(Protocol):
    """Called in this order: parameters once, finish once after loading, apply in every step."""

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        """Return the layer's parameters except the bias, by the names that they have in checkpoints."""
        ...

    def finish(self, layer: nn.Module) -> None:
        """Convert the loaded parameters to the form that `apply` needs."""
        ...

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """[T, inputs] → [T, outputs], of this rank's part"""
        ...


class PlainMethod:
    """A weight in the placement's precision, multiplied by torch."""

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        size = sum(shape.outputs.values())
        weight = new_parameter(
            size,
            shape.inputs,
            placement=placement,
            shards=shape.outputs,
            split=shape.split,
            copies=shape.copies,
            transposed=shape.transposed,
        )
        return {"weight": weight}  # [outputs, inputs]

    def finish(self, layer: nn.Module) -> None:
        pass

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, layer.weight, bias)  # type: ignore[arg-type]


class PackedMethod(PlainMethod):
    """A bfloat16 weight in oneDNN's blocked layout.

    F.linear would reorder the weight in every call; packed, products of 2 to 32 rows take about a third less time
    (Zen 5, 768 to 6,144 wide).
    """

    def __init__(self) -> None:
        self._packed: Tensor | None = None

    def finish(self, layer: nn.Module) -> None:
        """Pack the weight and drop the plain one. A tied weight stays with its owner; this is a second copy."""
        self._packed = pack(layer.weight)  # type: ignore[arg-type]
        del layer.weight

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        if self._packed is None:
            return super().apply(layer, x, bias)
        return multiply_packed(x, self._packed, bias)


class InvariantMethod(PlainMethod):
    """Our kernel, in which the bits of a row do not depend on the number of rows or threads.

    Torch's libraries choose a kernel by the number of rows, and each adds up in an order of its own.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        return self._kernels.linear(x, layer.weight, bias)  # type: ignore[arg-type]


def new_method(placement: Placement) -> LinearMethod:
    """Return the method that is fastest for a placement on this machine, of those that it allows."""
    kernels = invariant_kernels(placement)
    if kernels is not None:
        return InvariantMethod(kernels)
    return PackedMethod() if can_pack(placement) else PlainMethod()


def invariant_kernels(placement: Placement) -> Kernels | None:
    """Return the kernels if the placement asks for batch-invariant products and this machine has them."""
    return kernels_for(placement.device, placement.dtype) if placement.batch_invariant else None


def can_pack(placement: Placement) -> bool:
    """Return whether packed weights gain time here, and this torch has the functions, which are private."""
    if invariant_kernels(placement) is not None:
        return False
    if placement.device.type != "cpu" or placement.dtype != torch.bfloat16:
        return False
    functions = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    if not getattr(torch._C, "_has_mkldnn", False) or not all(_mkldnn(name) for name in functions):
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(weight: Tensor) -> Tensor:
    """Return a weight [outputs, inputs] in oneDNN's blocked layout."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _PACKED_ROWS)  # type: ignore[no-any-return]


def multiply_packed(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """[T, inputs] → [T, outputs]"""
    rows = x if x.shape[0] != 1 else x.expand(_ROWS_FOR_ONE, -1)
    # `default` is the overload: choosing it takes torch several microseconds.
    product = torch.ops.mkldnn._linear_pointwise.default(rows, packed, bias, "none", [], "")
    return product[: x.shape[0]]  # type: ignore[no-any-return]


def _mkldnn(name: str) -> Any:
    """Return one of torch's functions over oneDNN, or None."""
    return getattr(getattr(torch.ops.mkldnn, name, None), "default", None)
