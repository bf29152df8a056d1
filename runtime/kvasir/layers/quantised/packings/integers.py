"""Integers of 4 or 8 bits packed into int32: compressed-tensors, GPTQ and AWQ."""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from kvasir.config.options import ConfigError
from kvasir.hub.quantisation.layer_formats import AWQ, GPTQ, PackedNumbers
from kvasir.hub.quantisation.scheme_settings import NEXT_STEP
from kvasir.kernels.nibbles import as_bytes, pack_nibbles, unpack
from kvasir.layers.linear_shape import INPUTS, ONE, OUTPUTS, SHARDS, Axis, LinearShape
from kvasir.layers.parameter import Placement
from kvasir.layers.quantised.packings.scales import ScaleLoader, ShardLoader, equal_groups
from kvasir.layers.quantised.weight import QuantisedWeight
from kvasir.parallel.parallel_state import UnevenSplit

_WORD: Final = 32
_ZERO_OF_4_BITS: Final = 8  # as a QuantisedWeight without zeros has
_ZERO_OF_8_BITS: Final = 128
# AWQ packs outputs 0, 2, 4, 6, 1, 3, 5 and 7, the lowest bits first. Here: the place of each output.
_AWQ_PLACES: Final = (0, 4, 1, 5, 2, 6, 3, 7)


class PackedPacking:
    """Words along the inputs of an output. Numbers are stored plus 8, or plus 128 for 8 bits."""

    def __init__(self, form: PackedNumbers) -> None:
        self._form = form

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        form, words, groups = self._form, _WORD // self._form.bits, _groups(self._form.group)
        parameters = {
            "weight_packed": shape.parameter(placement, OUTPUTS, INPUTS.by(words), dtype=torch.int32),
            "weight_scale": shape.parameter(placement, OUTPUTS, groups, dtype=torch.float32, loader=ScaleLoader),
        }
        if not form.symmetric:
            parameters["weight_zero_point"] = shape.parameter(
                placement, OUTPUTS.by(words), groups, dtype=torch.int32, loader=ScaleLoader
            )
        if form.ordered and form.group is not None:
            parameters["weight_g_idx"] = _group_of_inputs(shape, placement)
        return parameters

    def weight(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> QuantisedWeight:
        words, scales, zeros = tensors["weight_packed"], tensors["weight_scale"], tensors.get("weight_zero_point")
        if zeros is not None:
            zeros = unpack(as_bytes(zeros.t()), self._form.bits).t()
        order = _order(tensors.get("weight_g_idx"), self._form.group)
        return _weight(self._form.bits, as_bytes(words), scales, zeros, self._form.group, order)


class GPTQPacking:
    """Words along the inputs, and words of zeros along the outputs."""

    def __init__(self, form: GPTQ) -> None:
        self._form = form

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        form, words, groups = self._form, _WORD // self._form.bits, _groups(self._form.group)
        parameters = {
            "qweight": shape.parameter(placement, INPUTS.by(words), OUTPUTS, dtype=torch.int32),
            "qzeros": shape.parameter(placement, groups, OUTPUTS.by(words), dtype=torch.int32),
            "scales": shape.parameter(placement, groups, OUTPUTS, dtype=torch.float32),
        }
        if form.desc_act and form.group is not None:
            parameters["g_idx"] = _group_of_inputs(shape, placement)
        return parameters

    def weight(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> QuantisedWeight:
        bits, group = self._form.bits, self._form.group
        zeros = unpack(as_bytes(tensors["qzeros"]), bits) + self._form.zero_offset
        zeros = zeros & (2**bits - 1)  # v1 stores 0 as 15
        order = _order(tensors.get("g_idx"), group)
        return _weight(bits, as_bytes(tensors["qweight"].t()), tensors["scales"].t(), zeros.t(), group, order)


class AWQPacking:
    """Words of 8 outputs, in an order of their own, for weights and zeros."""

    def __init__(self, form: AWQ) -> None:
        self._form = form

    def parameters(self, shape: LinearShape, placement: Placement) -> Mapping[str, nn.Parameter]:
        groups = _groups(self._form.group)
        return {
            "qweight": shape.parameter(placement, INPUTS, OUTPUTS.by(8), dtype=torch.int32),
            "qzeros": shape.parameter(placement, groups, OUTPUTS.by(8), dtype=torch.int32),
            "scales": shape.parameter(placement, groups, OUTPUTS, dtype=torch.float32),
        }

    def weight(self, tensors: Mapping[str, Tensor], shape: LinearShape) -> QuantisedWeight:
        numbers, zeros = (_awq_outputs(tensors[name]) for name in ("qweight", "qzeros"))
        return _weight(4, pack_nibbles(numbers.t()), tensors["scales"].t(), zeros.t(), self._form.group, None)


def _groups(group: int | None) -> Axis:
    return ONE if group is None else INPUTS.by(group)


def _group_of_inputs(shape: LinearShape, placement: Placement) -> nn.Parameter:
    split = shape.split
    if split is not None and split.dim == INPUTS.dim and split.size > 1:
        raise UnevenSplit(
            "the groups of weights are in the order of activations (desc_act, actorder), which is supported on 1 "
            "rank: choose 1, or a version of the model without it"
        )
    return shape.parameter(placement, SHARDS, INPUTS, dtype=torch.int32, loader=ShardLoader)


def _order(groups: Tensor | None, group: int | None) -> Tensor | None:
    # int32 [shards, inputs]: the group of each input. → the inputs by group
    if groups is None or group is None:
        return None
    first = groups[0]
    if not bool((groups == first).all()):
        raise ConfigError(
            "the parts of a fused layer (q, k and v, or gate and up) have different orders of inputs (g_idx): use "
            "a version of the model without desc_act"
        )
    order = first.argsort(stable=True)
    places = torch.arange(len(first), device=first.device)
    if torch.equal(order, places):
        return None
    if not torch.equal(first[order].long(), places // group):
        raise ConfigError(f"g_idx does not put {group} inputs into each group: the checkpoint is broken")
    return order


def _weight(
    bits: int, packed: Tensor, scales: Tensor, zeros: Tensor | None, group: int | None, order: Tensor | None
) -> QuantisedWeight:
    # packed uint8 [outputs, inputs * bits / 8]; scales and zeros [outputs, groups]
    if order is not None:
        packed = pack_nibbles(unpack(packed, 4)[:, order]) if bits == 4 else packed[:, order]
    inputs = packed.shape[1] * 8 // bits
    scales = equal_groups(scales.contiguous(), inputs, group or inputs)
    if bits == 8:
        if zeros is not None and bool((zeros != _ZERO_OF_8_BITS).any()):
            raise ConfigError("a weight of 8 bits has zeros other than 128, which is not supported: " + NEXT_STEP)
        return QuantisedWeight((packed ^ _ZERO_OF_8_BITS).view(torch.int8), scales, order=order)
    if zeros is not None:
        symmetric = bool((zeros == _ZERO_OF_4_BITS).all())
        zeros = None if symmetric else equal_groups(zeros.contiguous(), inputs, group or inputs)
    return QuantisedWeight(packed, scales, zeros, order=order)


def _awq_outputs(words: Tensor) -> Tensor:  # int32 [rows, outputs / 8] → uint8 [rows, outputs]
    numbers: Tensor = unpack(as_bytes(words), 4).unflatten(1, (-1, 8))
    return numbers[:, :, list(_AWQ_PLACES)].flatten(1)
