"""Chooses the linear method of a layer of a quantised model, by the layer's name in the checkpoint."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from kvasir.config.options import ConfigError
from kvasir.hub.quantisation.layer_formats import (
    AWQ,
    GPTQ,
    BitsAndBytes4,
    Float4,
    LayerFormat,
    MXFP4Experts,
    Nibbles,
    Numbers,
    OnLoad,
    PackedNumbers,
)
from kvasir.hub.quantisation.layer_names import Layer
from kvasir.hub.weight_scheme import LayerFormats
from kvasir.layers.layout import WHOLE
from kvasir.layers.linear_method import LinearMethod, unquantised_method
from kvasir.layers.linear_shape import LinearShape
from kvasir.layers.parameter import Placement
from kvasir.layers.quantised.method import Packing, QuantisedMethod
from kvasir.layers.quantised.packings.bits_and_bytes import BitsAndBytesPacking
from kvasir.layers.quantised.packings.eight_bits import NumbersPacking
from kvasir.layers.quantised.packings.float4 import Float4Packing, MXFP4ExpertsPacking
from kvasir.layers.quantised.packings.gguf_nibbles import NibblesPacking
from kvasir.layers.quantised.packings.integers import AWQPacking, GPTQPacking, PackedPacking
from kvasir.layers.quantised.packings.on_load_packing import OnLoadPacking
from kvasir.layers.quantised.parts_method import PartsMethod, part_shape

# Every producer leaves these as they are, and some configs do not say so.
_ROUTERS: Final = ("gate", "router", "shared_expert_gate")


def choose_method(shape: LinearShape, placement: Placement) -> LinearMethod:
    found = _formats_of(shape, placement)
    if len(set(found.values())) == 1:
        return _method(next(iter(found.values())), shape, placement)
    parent = placement.name.rpartition(".")[0]
    places = {shard: replace(placement, name=f"{parent}.{shard}".removeprefix(".")) for shard in found}
    return PartsMethod({shard: _method(found[shard], part_shape(shape, shard), places[shard]) for shard in found})


def _method(form: LayerFormat | None, shape: LinearShape, placement: Placement) -> LinearMethod:
    return unquantised_method(placement) if form is None else QuantisedMethod(_packing(form), shape, placement)


def _packing(form: LayerFormat) -> Packing:
    match form:
        case Numbers():
            return NumbersPacking(form)
        case PackedNumbers():
            return PackedPacking(form)
        case GPTQ():
            return GPTQPacking(form)
        case AWQ():
            return AWQPacking(form)
        case Float4():
            return Float4Packing(form)
        case MXFP4Experts():
            return MXFP4ExpertsPacking()
        case BitsAndBytes4():
            return BitsAndBytesPacking(form)
        case Nibbles():
            return NibblesPacking(form)
        case OnLoad():
            return OnLoadPacking(form)
    raise AssertionError(form)


def _formats_of(shape: LinearShape, placement: Placement) -> Mapping[str, LayerFormat | None]:  # by shard
    formats = placement.scheme.formats
    assert formats is not None, "the schemes of this method have a reader"
    if placement.name.rpartition(".")[2] in _ROUTERS:
        return {WHOLE: None}
    return {shard: _one_format(formats, shard, shape, placement) for shard in shape.outputs}


def _one_format(formats: LayerFormats, shard: str, shape: LinearShape, placement: Placement) -> LayerFormat | None:
    found = {layer.names[0]: formats.format_of(layer) for layer in _layers(shard, shape, placement)}
    if len(set(found.values())) > 1:
        described = ", ".join(f"{name}: {form or 'not quantised'}" for name, form in found.items())
        raise ConfigError(
            f"the experts of {placement.name} have different formats ({described}), and are computed as one: use a "
            "version of the model in which they agree"
        )
    return next(iter(found.values()))


def _layers(shard: str, shape: LinearShape, placement: Placement) -> Iterator[Layer]:
    # A shard replaces the last part of a fused layer's name; some checkpoints have the fused layer.
    fused = placement.name
    parent, _, last = fused.rpartition(".")
    name = last if shard == WHOLE else shard
    if shape.stack is None:
        yield _layer(placement, [f"{parent}.{name}".removeprefix("."), fused])
        return
    # A look at all experts would take seconds. Others are in the checkpoint, and have to fit.
    for index in sorted({0, shape.stack.total - 1}):
        yield _layer(placement, [f"{parent}.{index}.{name}", parent, fused], is_expert=True)


def _layer(placement: Placement, names: list[str], *, is_expert: bool = False) -> Layer:
    written = [".".join(placement.renamed.get(part, part) for part in name.split(".")) for name in names]
    return Layer(tuple(dict.fromkeys((*written, *names))), is_expert)
