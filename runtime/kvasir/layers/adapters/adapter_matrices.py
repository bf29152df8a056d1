"""AdapterMatrices: A and B of an adapter for one linear layer, with all its shards, on this rank."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from kvasir.layers.layout import WHOLE
from kvasir.layers.linear_shape import INPUTS, OUTPUTS, LinearShape
from kvasir.layers.parameter import Source, TensorLoader


class AdapterPart(NamedTuple):
    """The matrices of one module of PEFT: of a shard, such as q_proj, or of all shards (WHOLE)."""

    shard: str
    scaling: float
    a: Source  # [rank, inputs]
    b: Source  # [outputs of the shard, rank]


class AdapterMatrices(NamedTuple):
    """down: [ranks, own inputs]; up: [own outputs, ranks], with the scaling, and 0 outside of a part's outputs."""

    down: Tensor
    up: Tensor


def matrices_of(shape: LinearShape, parts: Sequence[AdapterPart], dtype: torch.dtype) -> AdapterMatrices:
    """Return this rank's matrices. Raises ValueError for other sizes than the layer's."""
    ranks = [part.a.shape[0] for part in parts]
    split = shape.split
    by_inputs = split if split is not None and split.dim == INPUTS.dim else None
    by_outputs = split if split is not None and split.dim == OUTPUTS.dim else None
    down_layout = LinearShape(shape.inputs, {WHOLE: sum(ranks)}, by_inputs).layout(OUTPUTS, INPUTS)
    own_outputs = replace(shape, inputs=1, split=by_outputs, stack=None).layout(OUTPUTS, INPUTS).local_shape[0]
    down = torch.zeros(down_layout.local_shape, dtype=dtype)
    up = torch.zeros(own_outputs, sum(ranks))
    end = 0
    for part, rank in zip(parts, ranks, strict=True):
        start, end = end, end + rank
        of_a = LinearShape(shape.inputs, {WHOLE: rank}, by_inputs).layout(OUTPUTS, INPUTS)
        of_b = replace(shape, inputs=rank, split=by_outputs, stack=None).layout(OUTPUTS, INPUTS)
        TensorLoader(of_a).fill(down[start:end], part.a, WHOLE)
        TensorLoader(of_b).fill(up[:, start:end], part.b, part.shard)
        up[:, start:end].mul_(part.scaling)
    return AdapterMatrices(down, up.to(dtype))
