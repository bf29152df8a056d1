"""How linear layers keep their weights and multiply by them.

Quantised formats are methods of their own: docs/design/adding-a-linear-method.md.
"""

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any, Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvasir.hub.weight_scheme import UNQUANTISED
from kvasir.kernels.cpu import Kernels, kernels_for
from kvasir.layers.linear_shape import INPUTS, OUTPUTS, LinearShape
from kvasir.layers.parameter import Placement

# The batch that oneDNN chooses its layout for; 1 to 1,024 rows are as fast with it.
_PACKED_ROWS: Final = 16
_ROWS_FOR_ONE: Final = 4


class LinearMethod(Protocol):
    """Called in this order: parameters once, finish once after loading, apply in every step.

    Stacked layers (experts) share a method, so state of a layer belongs in the layer.
    """

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        """Return the parameters except the bias, by their names in checkpoints."""
        ...

    def finish(self, layer: nn.Module) -> None:
        """Convert the loaded parameters to the form that `apply` needs."""
        ...

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """[T, inputs] → [T, outputs], of this rank's part"""
        ...

    def plain_weight(self, layer: nn.Module) -> Tensor | None:
        """Return the weight [outputs, inputs] if other kernels may multiply by it; [layers, …] if stacked."""
        ...


class PlainMethod:
    """A weight in the placement's precision, multiplied by torch."""

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        return {"weight": shape.parameter(placement, OUTPUTS, INPUTS, transposed=shape.transposed)}

    def finish(self, layer: nn.Module) -> None:
        pass

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, layer.weight, bias)  # type: ignore[arg-type]

    def plain_weight(self, layer: nn.Module) -> Tensor | None:
        return layer.weight  # type: ignore[return-value]


class PackedMethod(PlainMethod):
    """A bfloat16 weight in oneDNN's blocked layout, which F.linear would produce again in every call."""

    def finish(self, layer: nn.Module) -> None:
        # A tied weight stays with its owner; this is a second copy.
        layer.packed = pack(layer.weight)  # type: ignore[arg-type]
        del layer.weight

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        packed = layer.__dict__.get("packed")  # __getattr__ of a module is slower
        return super().apply(layer, x, bias) if packed is None else _multiply_packed(x, packed, bias)

    def plain_weight(self, layer: nn.Module) -> Tensor | None:
        return None


class InvariantMethod(PlainMethod):
    """Our kernel, in which the bits of a row do not depend on the number of rows or threads."""

    # Torch's libraries choose a kernel by the number of rows, and each adds up in an order of its own.
    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        return self._kernels.linear(x, layer.weight, bias)  # type: ignore[arg-type]

    def plain_weight(self, layer: nn.Module) -> Tensor | None:
        return None


def new_method(shape: LinearShape, placement: Placement) -> LinearMethod:
    """Return the method of a layer: by its scheme, its name and the names of its shards."""
    if placement.scheme == UNQUANTISED:
        return unquantised_method(placement)
    choose: Callable[[LinearShape, Placement], LinearMethod] = resolve_name(placement.scheme.choose_method)
    return choose(shape, placement)


def unquantised_method(placement: Placement) -> LinearMethod:
    """Return the fastest method for a plain weight that the placement allows."""
    kernels = _invariant_kernels(placement)
    if kernels is not None:
        return InvariantMethod(kernels)
    return PackedMethod() if _can_pack(placement) else PlainMethod()


def _invariant_kernels(placement: Placement) -> Kernels | None:
    return kernels_for(placement.device, placement.dtype) if placement.batch_invariant else None


def _can_pack(placement: Placement) -> bool:
    # The functions are private: another torch may not have them.
    if placement.device.type != "cpu" or placement.dtype != torch.bfloat16:
        return False
    functions = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    if not getattr(torch._C, "_has_mkldnn", False) or not all(_mkldnn(name) for name in functions):
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _PACKED_ROWS)  # type: ignore[no-any-return]


def _multiply_packed(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:  # [T, inputs] → [T, outputs]
    # oneDNN multiplies four equal rows faster than one. Two rows would have to be copied.
    rows = x if x.shape[0] != 1 else x.expand(_ROWS_FOR_ONE, -1)
    # `default` is the overload: choosing it takes torch several microseconds.
    product = torch.ops.mkldnn._linear_pointwise.default(rows, packed, bias, "none", [], "")
    return product[: x.shape[0]]  # type: ignore[no-any-return]


def _mkldnn(name: str) -> Any:
    return getattr(getattr(torch.ops.mkldnn, name, None), "default", None)
