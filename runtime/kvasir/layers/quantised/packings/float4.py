"""Floats of 4 bits (e2m1): NVFP4 and MXFP4."""

import threading
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from kvasir.hub.quantisation.layer_formats import Float4
from kvasir.layers.layout import Layout, Part
from kvasir.layers.linear_shape import INPUTS, OUTPUTS, SHARDS, LinearShape, Stack
from kvasir.layers.parameter import Placement, Source, parameter_with
from kvasir.layers.quantised.packings.scales import (
    FLOAT4,
    ScaleLoader,
    ShardLoader,
    equal_groups,
    of_rows,
    powers_of_two,
)
from kvasir.layers.quantised.weight import QuantisedWeight

_GROUP: Final = 32  # inputs of a block of MXFP4


class Float4Packing:
    def __init__(self, form: Float4) -> None:
        self._form = form

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        form = self._form
        scale = shape.parameter(
            placement,
            OUTPUTS,
            INPUTS.by(form.group),
            dtype=getattr(torch, form.scale_dtype),
            loader=ScaleLoader,
        )
        parameters = {
            form.weight: shape.parameter(placement, OUTPUTS, INPUTS.by(2), dtype=torch.uint8),
            "weight_scale": scale,
        }
        if form.global_scale is not None:
            parameters[form.global_scale] = shape.parameter(
                placement, SHARDS, dtype=torch.float32, loader=ShardLoader
            )
        return parameters

    def weight(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> QuantisedWeight:
        form, numbers, scales = self._form, tensors[self._form.weight], tensors["weight_scale"]
        scales = powers_of_two(scales) if form.scale_dtype == "uint8" else scales.float()
        if form.global_scale is not None:
            whole = of_rows(tensors[form.global_scale], shape.own_rows.values())[:, None]
            scales = scales / whole if form.divides else scales * whole
        return _weight(numbers, equal_groups(scales, numbers.shape[1] * 2, form.group))


class MXFP4ExpertsPacking:
    # Blocks [experts, outputs, groups, 16 bytes] and exponents. The rows of gate and up alternate there; a
    # QuantisedWeight has all rows of gate first.

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        assert shape.stack is not None, "the scheme chooses experts only"
        layout, stack = shape.layout(OUTPUTS, INPUTS.by(_GROUP)), shape.stack
        size = (len(stack.own), *layout.local_shape)
        blocks, scales = _InterleavedLoader(layout, stack, (16,)), _InterleavedLoader(layout, stack, ())
        return {
            "blocks": parameter_with(blocks, (*size, 16), placement, torch.uint8),
            "scales": parameter_with(scales, size, placement, torch.uint8),
        }

    def weight(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> QuantisedWeight:
        return _weight(tensors["blocks"].flatten(1), powers_of_two(tensors["scales"]))


def _weight(numbers: Tensor, scales: Tensor) -> QuantisedWeight:
    table = torch.tensor(FLOAT4, device=numbers.device)
    return QuantisedWeight(numbers, scales, table=table)


class _InterleavedLoader:
    def __init__(self, layout: Layout, stack: Stack, rest: tuple[int, ...]) -> None:
        self._layout = layout
        self._stack = stack
        self._rest = rest
        self.missing = {""}
        self._lock = threading.Lock()

    def __call__(self, parameter: nn.Parameter, source: Source, shard: str, index: int | None = None) -> None:
        expected = (self._stack.total, *self._layout.shape, *self._rest)
        if tuple(source.shape) != expected:
            raise ValueError(f"its shape is {list(source.shape)} and the model has {list(expected)}")
        with self._lock:
            if not self.missing:
                raise ValueError("it was loaded before")
            self.missing.clear()
        for target, expert in zip(parameter.data, self._stack.own, strict=True):
            self._fill(target, source, expert)

    def parts(self, shard: str, index: int | None = None) -> list[Part]:
        return [(slice(self._stack.own.start, self._stack.own.stop),)]

    def _fill(self, target: Tensor, source: Source, expert: int) -> None:
        count = len(self._layout.shards)
        for place, shard in enumerate(self._layout.shards):
            for (rows, groups), filled in self._layout.places(shard):
                together = slice(rows.start * count, rows.stop * count)
                piece = source[slice(expert, expert + 1), together, groups]
                if piece.dtype != target.dtype:
                    raise ValueError(f"it is {piece.dtype} and must be {target.dtype}")
                target[filled].copy_(piece[0, place::count])
