"""MXFP4 of gpt-oss, bitsandbytes, and NVIDIA's ModelOpt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvasir.hub.quantisation.float8 import OneFormat
from kvasir.hub.quantisation.layer_formats import BitsAndBytes4, Float4, LayerFormat, MXFP4Experts, Numbers
from kvasir.hub.quantisation.layer_names import Layer, LayerNames
from kvasir.hub.quantisation.scheme_settings import Settings

_BNB_BLOCK = 64


@dataclass(frozen=True)
class _OnlyExperts:
    format: LayerFormat
    excluded: LayerNames

    def format_of(self, layer: Layer) -> LayerFormat | None:
        return self.format if layer.is_expert and not self.excluded.holds(layer) else None


def read_mxfp4(config: Mapping[str, Any]) -> _OnlyExperts:
    settings = Settings("mxfp4", config)
    return _OnlyExperts(MXFP4Experts(), LayerNames.of(settings.names("modules_to_not_convert")))


def read_bitsandbytes(config: Mapping[str, Any]) -> OneFormat:
    settings = Settings("bitsandbytes", config)
    skipped = settings.get("llm_int8_skip_modules")
    excluded = LayerNames.of(["lm_head"] if skipped is None else settings.names("llm_int8_skip_modules"))
    if settings.get("load_in_8bit", "_load_in_8bit"):
        # Numbers of -127 to 127 for each output's largest absolute value.
        return OneFormat(Numbers("int8", "channel", scale="SCB", unit=1 / 127), excluded)
    if not settings.get("load_in_4bit", "_load_in_4bit"):
        raise settings.refusal("load_in_4bit", None, "true, or load_in_8bit")
    settings.one_of(("nf4", "fp4"), "bnb_4bit_quant_type", default="fp4")
    settings.one_of(("uint8",), "bnb_4bit_quant_storage", default="uint8")
    return OneFormat(BitsAndBytes4(_BNB_BLOCK), excluded)


def read_modelopt(config: Mapping[str, Any]) -> OneFormat:
    """Read the quantization_config of config.json, or the object `quantization` of hf_quant_config.json."""
    settings = Settings("modelopt", config)
    algorithm = settings.one_of(("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4"), "quant_algo")
    excluded = LayerNames.of(settings.names("ignore", "exclude_modules"))
    if algorithm == "NVFP4":
        settings.one_of((16,), "group_size", default=16)
        return OneFormat(Float4("weight", 16, "float8_e4m3fn", "weight_scale_2"), excluded, head=True)
    granularity = "tensor" if algorithm == "FP8" else "channel"
    return OneFormat(
        Numbers("float8_e4m3fn", granularity, quantise_inputs=True),  # type: ignore[arg-type]
        excluded,
        head=True,
    )
