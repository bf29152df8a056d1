"""Products with quantised weights on GPUs."""

from typing import Final

import torch
from torch import Tensor

from kvasir.kernels.triton.device_support import DTYPES, can_compile
from kvasir.kernels.triton.quantised.weight_tiling import WeightForm, half_step
from kvasir.layers.parameter import Placement
from kvasir.layers.quantised.weight import QuantisedWeight

# Tests set "cpu" for Triton's interpreter.
_KERNEL_DEVICE: Final = "cuda"
_SCALED_CAPABILITY: Final = (8, 9)  # the first with products of float8
_MULTIPLE_OF: Final = 16  # of the sizes of such a product


def device_product(weight: QuantisedWeight, placement: Placement) -> "WeightProduct | ScaledProduct | None":
    """Return None if neither torch nor a kernel supports the weight."""
    if _can_scale(weight, placement):
        return ScaledProduct(weight)
    device, form = placement.device, form_of(weight, placement.dtype)
    if device.type != _KERNEL_DEVICE or placement.dtype not in DTYPES or form is None or not can_compile(device):
        return None
    return WeightProduct(weight, form)


class WeightProduct:
    def __init__(self, weight: QuantisedWeight, form: WeightForm) -> None:
        from kvasir.kernels.triton.quantised.weight_product import KernelProduct  # imports triton

        self._order = weight.order
        self._multiply = KernelProduct(form, weight.numbers, weight.scales, weight.zeros, weight.table)

    def __call__(self, x: Tensor) -> Tensor:
        return self._multiply(x if self._order is None else x.index_select(1, self._order))


class ScaledProduct:
    """Products of float8. x gets a scale for each row."""

    def __init__(self, weight: QuantisedWeight) -> None:
        self._numbers = weight.numbers.contiguous().t()  # [inputs, outputs], column by column as cuBLAS takes it
        self._scales = weight.scales.t().contiguous()  # [1, outputs]
        self._largest = torch.finfo(weight.numbers.dtype).max

    def __call__(self, x: Tensor) -> Tensor:
        scales = x.abs().amax(dim=1, keepdim=True).float().clamp_(min=1e-12).div_(self._largest)  # [T, 1]
        numbers = (x / scales).clamp_(-self._largest, self._largest).to(self._numbers.dtype)
        return torch._scaled_mm(numbers, self._numbers, scales, self._scales, out_dtype=x.dtype)


def form_of(weight: QuantisedWeight, dtype: torch.dtype) -> WeightForm | None:
    """Return None if the kernels do not support the weight."""
    group = weight.inputs // weight.scales.shape[1]
    half = half_step(weight.inputs, group, dtype.itemsize)
    return None if half is None else WeightForm(_kind(weight), weight.inputs, group, half)


def _kind(weight: QuantisedWeight) -> str:
    if weight.numbers.dtype == torch.int8:
        return "int8"
    if weight.numbers.dtype == torch.float8_e4m3fn:
        return "fp8"
    if weight.table is not None:
        return "table4"
    return "signed4" if weight.zeros is None else "int4"


def _can_scale(weight: QuantisedWeight, placement: Placement) -> bool:
    if weight.numbers.dtype != torch.float8_e4m3fn or not weight.quantise_inputs or weight.order is not None:
        return False
    if placement.device.type != "cuda" or placement.dtype != torch.bfloat16 or weight.scales.shape[1] > 1:
        return False
    fits = weight.inputs % _MULTIPLE_OF == 0 and weight.outputs % _MULTIPLE_OF == 0
    return fits and torch.cuda.get_device_capability(placement.device) >= _SCALED_CAPABILITY
