"""How a checkpoint stores the weights of linear layers, from config.json. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

SCHEMES: Final = MappingProxyType[str, str]({})
"""The supported quant_methods, with the module:function that chooses a layer's linear method."""


@dataclass(frozen=True)
class WeightScheme:
    """The scheme of a checkpoint; it may exclude layers by name."""

    method: str = ""
    """A key of SCHEMES; "" without quantisation."""
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def choose_method(self) -> str:
        """Return the module:function that chooses a layer's linear method."""
        return SCHEMES[self.method]


UNQUANTISED: Final = WeightScheme()


def read_scheme(quantization: Any) -> WeightScheme | None:
    """Return the scheme of a quantization_config, or None if unsupported."""
    if not quantization:
        return UNQUANTISED
    if not isinstance(quantization, Mapping):
        return None
    method = quantization.get("quant_method")
    if isinstance(method, str) and method in SCHEMES:
        return WeightScheme(method, dict(quantization))
    return UNQUANTISED if _describes_no_weights(quantization) else None


def _describes_no_weights(quantization: Mapping[str, Any]) -> bool:
    method = quantization.get("quant_method")
    if method == "gguf":  # safetensors that transformers made from a GGUF file
        return True
    # llm-compressor writes only scales of the KV cache like this; weights would be in groups
    only_kv = bool(quantization.get("kv_cache_scheme")) and not quantization.get("config_groups")
    return method == "compressed-tensors" and only_kv
