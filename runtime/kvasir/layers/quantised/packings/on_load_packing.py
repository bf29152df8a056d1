"""Quantises the floats of a checkpoint, layer by layer.

int8 and fp8 have a scale for each output; int4 has a scale and a zero for each group of inputs.
"""

import threading
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from kvasir.hub.quantisation.layer_formats import OnLoad
from kvasir.kernels.nibbles import pack_nibbles
from kvasir.layers.layout import WHOLE, Layout, Part
from kvasir.layers.linear_shape import INPUTS, OUTPUTS, LinearShape
from kvasir.layers.parameter import Placement, Source, TensorLoader, parameter_with
from kvasir.layers.quantised.weight import QuantisedWeight

_GROUPS: Final = (128, 64, 32)
_MAX_FLOATS: Final = 2**22  # of a copy in float32: rows are quantised in parts of this size
_LARGEST_INT8: Final = 127


class Quantised(NamedTuple):
    numbers: Tensor
    scales: Tensor  # float32 [outputs, groups]
    zeros: Tensor | None = None


class OnLoadPacking:
    def __init__(self, form: OnLoad) -> None:
        self._form = form

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        outputs, inputs = shape.layout(OUTPUTS, INPUTS).local_shape
        group = self._group(inputs)
        with torch.device("meta"):
            sizes = self._quantised(torch.empty(0, inputs), group)
        stack = () if shape.stack is None else (len(shape.stack.own),)

        def parameter(like: Tensor, loader: "_Computed | TensorLoader") -> nn.Parameter:
            return parameter_with(loader, (*stack, outputs, like.shape[1]), placement, like.dtype)

        results = {"weight_scale": parameter(sizes.scales, _Computed())}
        if sizes.zeros is not None:
            results["weight_zero"] = parameter(sizes.zeros, _Computed())
        indexes = count()

        def loader(layout: Layout) -> TensorLoader:
            index = next(indexes)
            own = [result.data[index] if stack else result.data for result in results.values()]
            quantise = lambda floats: self._quantised(floats, group)  # noqa: E731
            return _StagedLoader(layout, shape.transposed and not stack, placement, quantise, own)

        weight = shape.parameter(
            placement, OUTPUTS, INPUTS, dtype=sizes.numbers.dtype, transposed=shape.transposed, loader=loader
        )
        weight.data = torch.empty(
            (*stack, outputs, sizes.numbers.shape[1]), dtype=sizes.numbers.dtype, device=placement.device
        )
        return {"weight": weight, **results}

    def weight(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> QuantisedWeight:
        weight = tensors["weight"]
        if "weight_scale" in tensors:
            found = Quantised(weight, tensors["weight_scale"], tensors.get("weight_zero"))
        else:  # the floats of an embedding, to which a head is tied
            found = self._quantised(weight, self._group(weight.shape[1]))
        return QuantisedWeight(*found, quantise_inputs=self._form.numbers == "fp8")

    def _group(self, inputs: int) -> int | None:
        # None: 8 bits with a scale for each output
        fitting = (group for group in _GROUPS if inputs % group == 0)
        return next(fitting, None) if self._form.numbers == "int4" else None

    def _quantised(self, floats: Tensor, group: int | None) -> Quantised:
        rows = max(1, _MAX_FLOATS // floats.shape[1])
        parts = [self._quantised_part(part.float(), group) for part in floats.split(rows)]
        numbers, scales, zeros = zip(*parts, strict=True)
        return Quantised(_joined(numbers), torch.cat(scales), None if zeros[0] is None else torch.cat(zeros))

    def _quantised_part(self, floats: Tensor, group: int | None) -> Quantised:
        if group is not None:
            return quantised_int4(floats, group)
        return quantised_fp8(floats) if self._form.numbers == "fp8" else quantised_int8(floats)


def quantised_int8(floats: Tensor) -> Quantised:  # float32 [outputs, inputs]
    scales = _positive(floats.abs().amax(dim=1, keepdim=True) / _LARGEST_INT8)
    return Quantised((floats / scales).round_().to(torch.int8), scales)


def quantised_fp8(floats: Tensor) -> Quantised:
    largest = torch.finfo(torch.float8_e4m3fn).max
    scales = _positive(floats.abs().amax(dim=1, keepdim=True) / largest)
    return Quantised((floats / scales).clamp_(-largest, largest).to(torch.float8_e4m3fn), scales)


def quantised_int4(floats: Tensor, group: int) -> Quantised:
    # For each group the better of two: the range of its numbers, or a scale at which the largest is -8.
    groups = floats.unflatten(1, (-1, group))
    low, high = groups.amin(2).clamp_(max=0), groups.amax(2).clamp_(min=0)  # [outputs, groups]
    of_range = _positive((high - low) / 15)
    zeros = (-low / of_range).round_().clamp_(0, 15)
    largest = torch.where(high > -low, high, low)
    of_largest = torch.where(largest == 0, 1.0, largest / -8)
    numbers, error = _int4(groups, of_range, zeros)
    others, other_error = _int4(groups, of_largest, torch.full_like(zeros, 8))
    better = other_error < error
    numbers = torch.where(better[:, :, None], others, numbers).flatten(1)
    scales = torch.where(better, of_largest, of_range)
    return Quantised(pack_nibbles(numbers), scales, torch.where(better, 8, zeros).to(torch.uint8))


def _int4(groups: Tensor, scales: Tensor, zeros: Tensor) -> tuple[Tensor, Tensor]:
    numbers = (groups / scales[:, :, None]).round_().add_(zeros[:, :, None]).clamp_(0, 15)
    floats = (numbers - zeros[:, :, None]).mul_(scales[:, :, None])
    return numbers.to(torch.uint8), floats.sub_(groups).square_().sum(2)


def _positive(scales: Tensor) -> Tensor:
    return torch.where(scales == 0, 1.0, scales)


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    # torch.cat does not know all 8-bit floats
    return torch.cat([part.view(torch.uint8) for part in parts]).view(parts[0].dtype)


class _Computed:
    # The loader of the weight fills these parameters.

    def __init__(self) -> None:
        self.missing: set[str] = set()

    def __call__(self, parameter: nn.Parameter, source: Source, shard: str, index: int | None = None) -> None:
        raise ValueError("the checkpoint of a model that is quantised when it is loaded has only floats")

    def parts(self, shard: str, index: int | None = None) -> list[Part]:
        return []


class _StagedLoader(TensorLoader):
    """Collects the floats of a layer, and quantises them after the last shard."""

    def __init__(
        self,
        layout: Layout,
        transposed: bool,
        placement: Placement,
        quantise: Callable[[Tensor], Quantised],
        results: list[Tensor],
    ) -> None:
        super().__init__(layout, transposed)
        self._placement = placement
        self._quantise = quantise
        self._results = results
        self._floats: Tensor | None = None
        self._awaited = set(layout.shards)
        self._staging = threading.Lock()

    def fill(self, target: Tensor, source: Source, shard: str) -> None:
        with self._staging:
            if self._floats is None:
                self._floats = torch.empty(
                    self._layout.local_shape, dtype=self._placement.dtype, device=self._placement.device
                )
        super().fill(self._floats, source, shard)
        with self._staging:
            self._awaited -= set(self._layout.shards) if shard == WHOLE else {shard}
            if self._awaited:
                return
        quantised, self._floats = self._quantise(self._floats), None
        for result, value in zip((target, *self._results), quantised, strict=False):
            if value is not None:
                result.copy_(value)
