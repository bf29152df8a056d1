"""The sizes of a linear layer and of its parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Final, NamedTuple

import torch
from torch import nn

from kvasir.layers.layout import WHOLE, Layout, Split
from kvasir.layers.parameter import Placement, StackedLoader, TensorLoader, parameter_with
from kvasir.parallel.parallel_state import UnevenSplit


class Axis(NamedTuple):
    """A dimension of a parameter, along dimension `dim` of the weight [outputs, inputs]."""

    dim: int
    unit: int = 1  # weights in an entry: 8 for 4 bits in int32

    def by(self, unit: int) -> "Axis":
        return Axis(self.dim, unit)

    def entries(self, length: int) -> int:
        return -(-length // self.unit)


OUTPUTS: Final = Axis(0)
INPUTS: Final = Axis(1)
# No split applies to these: an entry for each shard of the outputs, and one in all.
SHARDS: Final = Axis(-1)
ONE: Final = Axis(-2)


class Stack(NamedTuple):
    total: int
    own: range  # layers of this rank
    # In a checkpoint's tensor of all layers, rows of the shards alternate.
    alternating: bool = False


@dataclass(frozen=True)
class LinearShape:
    """The sizes of a layer before the split over ranks."""

    inputs: int
    outputs: Mapping[str, int]  # shard → size
    split: Split | None = None  # of the weight [outputs, inputs]
    copies: Mapping[str, int] = field(default_factory=dict)
    transposed: bool = False
    stack: Stack | None = None
    groups: int = 1  # in which the outputs of all shards alternate in the checkpoint

    @property
    def num_weights(self) -> int:
        return prod(self.layout(OUTPUTS, INPUTS).local_shape)

    @property
    def own_rows(self) -> Mapping[str, int]:
        """Return the outputs of each shard that this rank holds, with padding."""
        return self.layout(OUTPUTS).local_shards

    def parameter(
        self,
        placement: Placement,
        *axes: Axis,
        dtype: torch.dtype | None = None,
        transposed: bool = False,
        loader: Callable[[Layout], TensorLoader] | None = None,
    ) -> nn.Parameter:
        """Return an uninitialised parameter. Stacked layers are the first dimension.

        Raises UnevenSplit for a split within an entry.
        """
        # `transposed`: the checkpoint reverses the dimensions; of stacked layers only in a tensor of all.
        return self.parameter_of(self.layout(*axes), placement, dtype, loader, transposed=transposed)

    def parameter_of(
        self,
        layout: Layout,
        placement: Placement,
        dtype: torch.dtype | None,
        loader: Callable[[Layout], TensorLoader] | None,
        *,
        transposed: bool = False,
    ) -> nn.Parameter:
        if self.stack is None:
            loader = loader or partial(TensorLoader, transposed=transposed)
            return parameter_with(loader(layout), layout.local_shape, placement, dtype)
        total, own, alternating = self.stack
        stacked = StackedLoader(
            layout, total, own, loader or TensorLoader, transposed=transposed, alternating=alternating
        )
        return parameter_with(stacked, (len(own), *layout.local_shape), placement, dtype)

    def layout(self, *axes: Axis) -> Layout:
        dims = [axis.dim for axis in axes]
        entries = [{shard: axis.entries(size) for shard, size in self._sizes(axis.dim).items()} for axis in axes]
        shape = [sum(sizes.values()) for sizes in entries]
        split = None
        if self.split is not None and self.split.dim in dims:
            place = dims.index(self.split.dim)
            self._check_split(self.split, axes[place])
            split = self.split._replace(dim=place)
        sharded = [dim for dim in (OUTPUTS.dim, SHARDS.dim) if dim in dims]
        if not sharded:
            return Layout(shape, None, split)
        place = dims.index(sharded[0])
        return Layout(shape, entries[place], split, self.copies, shard_dim=place, groups=self.groups)

    def _sizes(self, dim: int) -> Mapping[str, int]:
        if dim == SHARDS.dim:
            return dict.fromkeys(self.outputs, 1)
        if dim == ONE.dim:
            return {WHOLE: 1}
        return self.outputs if dim == OUTPUTS.dim else {WHOLE: self.inputs}

    def _check_split(self, split: Split, axis: Axis) -> None:
        for shard, size in self._sizes(axis.dim).items():
            ranks = split.shared_by(self.copies.get(shard, 1)).size
            if ranks > 1 and axis.unit > 1 and size % (ranks * axis.unit):
                raise UnevenSplit(f"{ranks} ranks cannot hold equal parts of {size} in units of {axis.unit}")
