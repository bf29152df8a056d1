"""How linear layers keep their weights and multiply by them (docs/design/adding-a-linear-method.md)."""

import logging
import time
from collections.abc import Callable, Mapping
from functools import cache
from pkgutil import resolve_name
from typing import Any, Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvasir.hub.weight_scheme import UNQUANTISED
from kvasir.kernels.cpu import Kernels, kernels_for
from kvasir.layers.linear_shape import INPUTS, OUTPUTS, LinearShape
from kvasir.layers.parameter import Placement

log = logging.getLogger(__name__)

# oneDNN's layout for this batch is fast for 1 to 1,024 rows.
_PACKED_ROWS: Final = 16
_ROWS_FOR_ONE: Final = (1, 4)
CLEARLY: Final = 1.1  # times as fast: with less, noise could choose otherwise in another engine
# Outputs and inputs of a weight beyond the L2 cache, and times that it is multiplied.
_MEASURED: Final = (4096, 1024)
_ROUNDS: Final = 5


class LinearMethod(Protocol):
    """Methods keep state in the layer, because stacked layers (experts) share a method."""

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        """Return the parameters except the bias, by name in checkpoints."""
        ...

    def finish(self, layer: nn.Module) -> None:
        """Convert the loaded parameters for `apply`."""
        ...

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return the product of this rank: [T, inputs] → [T, outputs]."""
        ...

    def plain_weight(self, layer: nn.Module) -> Tensor | None:
        """Return the weight [outputs, inputs], or [layers, …], if other kernels may multiply by it."""
        ...


class PlainMethod:
    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        return {"weight": shape.parameter(placement, OUTPUTS, INPUTS, transposed=shape.transposed)}

    def finish(self, layer: nn.Module) -> None:
        pass

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, layer.weight, bias)  # type: ignore[arg-type]

    def plain_weight(self, layer: nn.Module) -> Tensor | None:
        return layer.weight  # type: ignore[return-value]


class PackedMethod(PlainMethod):
    """A bfloat16 weight in oneDNN's blocked layout, which F.linear would produce in every call."""

    def finish(self, layer: nn.Module) -> None:
        # The owner of a tied weight keeps it: this is a second copy.
        layer.packed = pack(layer.weight)  # type: ignore[arg-type]
        del layer.weight
        rows_for_one()

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        packed = layer.__dict__.get("packed")  # __getattr__ of a module is slower
        return super().apply(layer, x, bias) if packed is None else _multiply_packed(x, packed, bias)

    def plain_weight(self, layer: nn.Module) -> Tensor | None:
        return None


class InvariantMethod(PlainMethod):
    """A product in which the bits of a row do not depend on other rows or on threads."""

    # Torch's order of additions depends on the number of rows.
    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        return self._kernels.linear(x, layer.weight, bias)  # type: ignore[arg-type]

    def plain_weight(self, layer: nn.Module) -> Tensor | None:
        return None


def new_method(shape: LinearShape, placement: Placement) -> LinearMethod:
    if placement.scheme == UNQUANTISED:
        return unquantised_method(placement)
    choose: Callable[[LinearShape, Placement], LinearMethod] = resolve_name(placement.scheme.choose_method)
    return choose(shape, placement)


def unquantised_method(placement: Placement) -> LinearMethod:
    kernels = invariant_kernels(placement)
    if kernels is not None:
        return InvariantMethod(kernels)
    return PackedMethod() if _can_pack(placement) else PlainMethod()


def invariant_kernels(placement: Placement) -> Kernels | None:
    return kernels_for(placement.device, placement.dtype) if placement.batch_invariant else None


def _can_pack(placement: Placement) -> bool:
    # The functions are private, so another torch may not have them.
    if placement.device.type != "cpu" or placement.dtype != torch.bfloat16:
        return False
    functions = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    if not getattr(torch._C, "_has_mkldnn", False) or not all(_mkldnn(name) for name in functions):
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _PACKED_ROWS)  # type: ignore[no-any-return]


@cache
def rows_for_one() -> int:
    """Return how many equal rows, 1 or 4, oneDNN multiplies fastest in place of one, measured on this machine."""
    # Versions of oneDNN differ in how fast one row reads a weight.
    packed = pack(torch.ones(_MEASURED, dtype=torch.bfloat16))
    x = torch.ones(max(_ROWS_FOR_ONE), _MEASURED[1], dtype=torch.bfloat16)
    times = dict.fromkeys(_ROWS_FOR_ONE, float("inf"))
    for _ in range(_ROUNDS):
        for rows in times:
            began = time.perf_counter()
            torch.ops.mkldnn._linear_pointwise.default(x[:rows], packed, None, "none", [], "")
            times[rows] = min(times[rows], time.perf_counter() - began)
    fastest = min(times, key=lambda rows: times[rows] * (CLEARLY if rows == 1 else 1))
    figures = ", ".join(f"{rows}: {seconds * 1e3:.2f} ms" for rows, seconds in times.items())
    log.info("rows in place of one in products of bfloat16: %d (%s)", fastest, figures)
    return fastest


def _multiply_packed(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    rows = x if x.shape[0] != 1 else x.expand(rows_for_one(), -1)
    # Naming the overload saves dispatch time.
    product = torch.ops.mkldnn._linear_pointwise.default(rows, packed, bias, "none", [], "")
    return product[: x.shape[0]]  # type: ignore[no-any-return]


def _mkldnn(name: str) -> Any:
    return getattr(getattr(torch.ops.mkldnn, name, None), "default", None)
