"""--quantization: weights that are quantised while a checkpoint of floats is loaded."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from kvasir.hub.quantisation.layer_formats import LayerFormat, OnLoad
from kvasir.hub.quantisation.layer_names import Layer

NUMBERS: Final[tuple[Literal["int8", "int4", "fp8"], ...]] = ("int8", "int4", "fp8")

# vLLM's names for the same, and for methods of checkpoints that choose a kernel too.
ALIASES: Final = MappingProxyType(
    {
        "fp8_per_channel": "fp8",
        "int8_per_channel_weight_only": "int8",
        "auto_awq": "awq",
        "awq_marlin": "awq",
        "auto_gptq": "gptq",
        "gptq_marlin": "gptq",
        "modelopt_fp4": "modelopt",
    }
)


@dataclass(frozen=True)
class OnLoadLayers:
    numbers: Literal["int8", "int4", "fp8"]

    def format_of(self, layer: Layer) -> LayerFormat | None:
        if not layer.is_head:
            return OnLoad(self.numbers)
        # Logits need more than 4 bits, and fp8 leaves the head as it is, as vLLM does.
        return None if self.numbers == "fp8" else OnLoad("int8")
