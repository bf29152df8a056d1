"""GPTQ (AutoGPTQ, GPTQModel), AWQ (AutoAWQ), and AutoRound, which packs as these do."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvasir.hub.quantisation.float8 import OneFormat
from kvasir.hub.quantisation.layer_formats import AWQ, GPTQ, LayerFormat
from kvasir.hub.quantisation.layer_names import Layer, LayerNames, check_regex
from kvasir.hub.quantisation.scheme_settings import Settings

_AUTO_ROUND: Final = ("auto_round:auto_gptq", "auto_round:auto_awq")
_FLOAT_BITS: Final = 16


@dataclass(frozen=True)
class GPTQLayers:
    format: GPTQ
    head: bool
    only: LayerNames | None  # None: all layers
    # The first regex that matches a layer changes its format, or leaves it unquantised (None).
    dynamic: tuple[tuple[str, GPTQ | None], ...]

    def format_of(self, layer: Layer) -> LayerFormat | None:
        if layer.is_head and not self.head:
            return None
        for regex, changed in self.dynamic:
            if any(re.match(regex, name) for name in layer.spellings()):
                return changed
        return self.format if layer.is_head or self.only is None or self.only.holds(layer) else None


def read_gptq(config: Mapping[str, Any]) -> GPTQLayers:
    settings = Settings("gptq", config)
    name = settings.one_of(("gptq", "gptq_v2"), "checkpoint_format", "format", default="gptq")
    offset = 1 if name == "gptq" else 0
    only = _module_names(settings)
    dynamic = settings.part("dynamic").values if settings.get("dynamic") else {}
    usual = _gptq(settings, offset)
    return GPTQLayers(
        usual,
        settings.flag("lm_head", False),
        LayerNames.of(only) if only else None,
        tuple(_override(settings, pattern, values, offset) for pattern, values in dynamic.items()),
    )


def _module_names(settings: Settings) -> list[str]:
    # a list of names, or of lists of names
    name = "modules_in_block_to_quantize"
    entries = settings.get(name) or []
    if not isinstance(entries, list):
        raise settings.refusal(name, entries, "a list of names")
    parts = [part for entry in entries for part in (entry if isinstance(entry, list) else [entry])]
    return list(Settings(settings.method, {name: parts}).names(name))


def _gptq(settings: Settings, offset: int) -> GPTQ:
    bits = settings.one_of((4, 8), "bits")
    if bits == 8:
        settings.one_of((True,), "sym", default=True)
    return GPTQ(bits, settings.group("group_size"), offset, settings.flag("desc_act", False))


def _override(settings: Settings, pattern: str, values: Any, offset: int) -> tuple[str, GPTQ | None]:
    regex = re.sub(r"^[+-]:", "", pattern)
    check_regex(regex)
    if pattern.startswith("-:"):
        return regex, None
    changed = values if isinstance(values, Mapping) else {}
    return regex, _gptq(Settings(settings.method, {**settings.values, **changed}), offset)


def read_awq(config: Mapping[str, Any]) -> OneFormat:
    settings = Settings("awq", config)
    settings.one_of((4,), "bits", "w_bit")
    settings.one_of((True,), "zero_point", default=True)
    version = settings.get("version", "format") or "gemm"
    Settings("awq", {"version": str(version).lower()}).one_of(("gemm",), "version")
    excluded = LayerNames.of(settings.names("modules_to_not_convert"))
    return OneFormat(AWQ(settings.group("group_size", "q_group_size")), excluded)


def read_auto_round(config: Mapping[str, Any]) -> OneFormat:
    settings = Settings("auto-round", config)
    packing = settings.one_of(_AUTO_ROUND, "packing_format")
    settings.one_of(("int",), "data_type", default="int")
    settings.one_of((4, 8) if packing == _AUTO_ROUND[0] else (4,), "bits")
    excluded = LayerNames.of(_float_layers(settings))
    if packing == _AUTO_ROUND[0]:
        return OneFormat(_gptq(settings, offset=1), excluded)
    return OneFormat(AWQ(settings.group("group_size")), excluded)


def _float_layers(settings: Settings) -> Iterator[str]:
    layers = settings.part("extra_config").values if settings.get("extra_config") else {}
    for name, values in layers.items():
        bits = values.get("bits") if isinstance(values, Mapping) else None
        if type(bits) is not int or bits < _FLOAT_BITS:
            raise settings.refusal("extra_config", {name: values}, f"of layers with {_FLOAT_BITS} bits")
        yield name
