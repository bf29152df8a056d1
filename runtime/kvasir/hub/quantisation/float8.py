"""FP8 of transformers (DeepSeek, Qwen), AutoFP8 and FBGEMM."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvasir.hub.quantisation.layer_formats import LayerFormat, Numbers
from kvasir.hub.quantisation.layer_names import Layer, LayerNames
from kvasir.hub.quantisation.scheme_settings import Settings


@dataclass(frozen=True)
class OneFormat:
    """All layers have one format, except those of a list and, unless `head`, the head."""

    format: LayerFormat
    excluded: LayerNames
    head: bool = False

    def format_of(self, layer: Layer) -> LayerFormat | None:
        if (layer.is_head and not self.head) or self.excluded.holds(layer):
            return None
        return self.format


def read_fp8(config: Mapping[str, Any]) -> OneFormat:
    settings = Settings("fp8", config)
    settings.one_of(("e4m3", "float8_e4m3fn"), "fmt", default="e4m3")
    settings.one_of(("static", "dynamic"), "activation_scheme", default="dynamic")
    block = settings.get("weight_block_size")
    excluded = LayerNames.of(settings.names("modules_to_not_convert", "ignored_layers"))
    if block is None:
        return OneFormat(Numbers("float8_e4m3fn", "tensor", quantise_inputs=True), excluded)
    return OneFormat(
        Numbers("float8_e4m3fn", "block", block_of(settings, "weight_block_size", block), quantise_inputs=True),
        excluded,
    )


def read_fbgemm(config: Mapping[str, Any]) -> OneFormat:
    settings = Settings("fbgemm_fp8", config)
    excluded = LayerNames.of(settings.names("modules_to_not_convert"))
    return OneFormat(Numbers("float8_e4m3fn", "channel", quantise_inputs=True), excluded)


def block_of(settings: Settings, name: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise settings.refusal(name, value, "two sizes, such as [128, 128]")
    return settings.size(value[0], name), settings.size(value[1], name)
