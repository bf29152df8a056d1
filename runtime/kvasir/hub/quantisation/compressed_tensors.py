"""Compressed-tensors, the format of llm-compressor."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvasir.hub.quantisation.float8 import block_of
from kvasir.hub.quantisation.layer_formats import Float4, Granularity, LayerFormat, Numbers, PackedNumbers
from kvasir.hub.quantisation.layer_names import Layer, LayerNames
from kvasir.hub.quantisation.scheme_settings import Settings

_PLAIN = ("int-quantized", "float-quantized", "naive-quantized")
_FORMATS = (*_PLAIN, "pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized")


@dataclass(frozen=True)
class _Group:
    targets: LayerNames
    all_linear: bool
    format: LayerFormat


@dataclass(frozen=True)
class CompressedTensors:
    groups: tuple[_Group, ...]
    ignored: LayerNames

    def format_of(self, layer: Layer) -> LayerFormat | None:
        if self.ignored.holds(layer):
            return None
        # A target with a name comes before the class of all linear layers.
        named = (group.format for group in self.groups if group.targets.holds(layer))
        others = (group.format for group in self.groups if group.all_linear)
        return next(named, None) or next(others, None)


def read_compressed_tensors(config: Mapping[str, Any]) -> CompressedTensors:
    settings = Settings("compressed-tensors", config)
    sparsity = config.get("sparsity_config") or {}
    if isinstance(sparsity, Mapping) and sparsity.get("format") != "dense":
        settings.absent("sparsity_config")
    settings.absent("transform_config")
    groups = settings.part("config_groups")
    return CompressedTensors(
        tuple(_group(settings, groups.part(name)) for name in groups.values),
        LayerNames.of(settings.names("ignore")),
    )


def _group(settings: Settings, group: Settings) -> _Group:
    targets = group.names("targets")
    group.absent("output_activations")
    format_name = group.get("format") or settings.get("format")
    if format_name == "mixed-precision":
        raise settings.refusal("format", None, "set in each of config_groups")
    weights = group.part("weights")
    known = Settings(settings.method, {"format": format_name}).one_of(_FORMATS, "format")
    quantises = bool(group.get("input_activations"))
    named = LayerNames.of(name for name in targets if name != "Linear")
    return _Group(named, "Linear" in targets, _format(weights, known, quantises))


def _format(weights: Settings, format_name: str, quantise_inputs: bool) -> LayerFormat:
    if format_name == "nvfp4-pack-quantized":
        _check_float4(weights, 16)
        return Float4("weight_packed", 16, "float8_e4m3fn", "weight_global_scale", divides=True)
    if format_name == "mxfp4-pack-quantized":
        _check_float4(weights, 32)
        return Float4("weight_packed", 32, "uint8")
    granularity = weights.one_of(("tensor", "channel", "group", "block"), "strategy", default="tensor")
    if format_name == "pack-quantized":
        return _packed(weights, granularity)
    number = weights.one_of(("int", "float"), "type", default="int")
    bits = weights.one_of((8,) if number == "float" else (4, 8), "num_bits")
    weights.one_of((True,), "symmetric", default=True)
    weights.one_of((None, False, "weight", "static", "dynamic"), "actorder")
    dtype = "float8_e4m3fn" if number == "float" else "int8"
    return Numbers(
        dtype,  # type: ignore[arg-type]
        granularity,
        _block(weights, granularity),
        quantise_inputs=quantise_inputs and bits == 8,
    )


def _check_float4(weights: Settings, group: int) -> None:
    weights.one_of(("float",), "type", default="float")
    weights.one_of((4,), "num_bits", default=4)
    weights.one_of((group,), "group_size", default=group)


def _packed(weights: Settings, granularity: Granularity) -> PackedNumbers:
    weights.one_of(("int",), "type", default="int")
    bits = weights.one_of((4, 8), "num_bits")
    weights.one_of(("channel", "group"), "strategy")
    symmetric = weights.flag("symmetric", True)
    if bits == 8 and not symmetric:
        raise weights.refusal("symmetric", symmetric, "true for 8 bits")
    # Only "group" stores the groups; with "weight" they are in order again.
    order = weights.one_of((None, False, True, "group", "weight", "static", "dynamic"), "actorder")
    group = weights.group("group_size") if granularity == "group" else None
    return PackedNumbers(bits, group, symmetric, order in (True, "group", "dynamic"))


def _block(weights: Settings, granularity: Granularity) -> tuple[int, int]:
    if granularity == "block":
        return block_of(weights, "block_structure", weights.get("block_structure"))
    if granularity == "group":
        return 1, weights.size(weights.get("group_size"), "group_size")
    return 1, 1
