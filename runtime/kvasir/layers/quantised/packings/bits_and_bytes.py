"""The 4 bits of bitsandbytes (NF4, FP4), whose tensors are flat."""

from collections.abc import Mapping
from math import prod
from typing import Final

import torch
from torch import Tensor, nn

from kvasir.config.options import ConfigError
from kvasir.hub.quantisation.layer_formats import BitsAndBytes4
from kvasir.kernels.nibbles import swap_nibbles
from kvasir.layers.layout import Layout, Part
from kvasir.layers.linear_shape import INPUTS, OUTPUTS, LinearShape
from kvasir.layers.parameter import Placement, Source, TensorLoader
from kvasir.layers.quantised.packings.scales import ShardLoader
from kvasir.layers.quantised.weight import QuantisedWeight

_TABLE: Final = 16


class BitsAndBytesPacking:
    def __init__(self, form: BitsAndBytes4) -> None:
        self._block = form.block

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        if shape.inputs % self._block:
            raise ConfigError(
                f"{placement.name} has {shape.inputs} inputs, and bitsandbytes weights of 4 bits are supported for "
                f"multiples of {self._block}: use another quantised version of the model"
            )
        tables = Layout((len(shape.outputs), _TABLE), dict.fromkeys(shape.outputs, 1))
        return {
            "weight": shape.parameter(placement, OUTPUTS, INPUTS.by(2), dtype=torch.uint8, loader=_FlatLoader),
            "absmax": shape.parameter(
                placement, OUTPUTS, INPUTS.by(self._block), dtype=torch.float32, loader=_FlatLoader
            ),
            "quant_map": shape.parameter_of(tables, placement, torch.float32, ShardLoader),
        }

    def weight(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> QuantisedWeight:
        tables = tensors["quant_map"]
        if not bool((tables == tables[0]).all()):
            raise ConfigError("the parts of a fused layer have different tables (quant_map)")
        # The first number of a byte is in its high half.
        return QuantisedWeight(swap_nibbles(tensors["weight"]), tensors["absmax"], table=tables[0].clone())


class _FlatLoader(TensorLoader):
    """Copies a part of a tensor that the checkpoint stores flat."""

    def fill(self, target: Tensor, source: Source, shard: str) -> None:
        super().fill(target, _Unflattened(source, self._layout.shape_of(shard)), shard)


class _Unflattened:
    def __init__(self, source: Source, wanted: tuple[int, ...]) -> None:
        self._source = source
        self.shape = wanted if prod(source.shape) == prod(wanted) else tuple(source.shape)

    def __getitem__(self, part: Part, /) -> Tensor:
        return self._source[tuple(slice(None) for _ in self._source.shape)].reshape(self.shape)[part]
