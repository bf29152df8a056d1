"""How a checkpoint stores the weights of linear layers, from config.json. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

SCHEMES: Final = MappingProxyType[str, str]({})
"""The supported schemes: quant_method of a quantization_config to the module:function that chooses a layer's linear
method (docs/design/adding-a-linear-method.md)."""


@dataclass(frozen=True)
class WeightScheme:
    """The scheme of a whole checkpoint; it may leave out layers by their names."""

    method: str = ""
    """A key of SCHEMES; "" if no weight is quantised."""
    config: dict[str, Any] = field(default_factory=dict)
    """The quantization_config."""

    @property
    def choose_method(self) -> str:
        """The module:function that chooses the linear method of a layer."""
        return SCHEMES[self.method]


UNQUANTISED: Final = WeightScheme()


def read_scheme(quantization: Any) -> WeightScheme | None:
    """Return the scheme that a quantization_config describes; None: it is not supported."""
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
    if method == "gguf":  # transformers has made the safetensors files from a GGUF file
        return True
    # llm-compressor writes only scales of the KV cache like this; weights would be in groups.
    only_kv = bool(quantization.get("kv_cache_scheme")) and not quantization.get("config_groups")
    return method == "compressed-tensors" and only_kv
