"""How a checkpoint stores the weights of linear layers, from config.json. Imports no torch."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

from kvasir.hub.gguf.kept_layers import GGUF, KeptLayers
from kvasir.hub.hub_errors import HubError
from kvasir.hub.quantisation.compressed_tensors import read_compressed_tensors
from kvasir.hub.quantisation.float8 import read_fbgemm, read_fp8
from kvasir.hub.quantisation.gptq_awq import read_auto_round, read_awq, read_gptq
from kvasir.hub.quantisation.layer_formats import LayerFormat
from kvasir.hub.quantisation.layer_names import Layer
from kvasir.hub.quantisation.on_load import ALIASES, NUMBERS, OnLoadLayers
from kvasir.hub.quantisation.others import read_bitsandbytes, read_modelopt, read_mxfp4
from kvasir.hub.quantisation.scheme_settings import NEXT_STEP
from kvasir.hub.reading import read_json_if_any

_CHOOSE: Final = "kvasir.layers.quantised.choose:choose_method"


class LayerFormats(Protocol):
    def format_of(self, layer: Layer) -> LayerFormat | None:
        # None: the layer is not quantised.
        ...


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], LayerFormats]]] = MappingProxyType(
    {
        "auto-round": read_auto_round,
        "awq": read_awq,
        "bitsandbytes": read_bitsandbytes,
        "compressed-tensors": read_compressed_tensors,
        "fbgemm_fp8": read_fbgemm,
        "fp8": read_fp8,
        "gptq": read_gptq,
        "modelopt": read_modelopt,
        "modelopt_fp4": read_modelopt,
        "mxfp4": read_mxfp4,
    }
)

SCHEMES: Final = MappingProxyType(dict.fromkeys(_READERS, _CHOOSE))
"""The supported quant_methods, with the module:function that chooses a layer's linear method."""

_ON_LOAD: Final = "--quantization"
# Of methods that no quantization_config names.
_UNNAMED_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], LayerFormats]]] = MappingProxyType(
    {
        GGUF: lambda config: KeptLayers(config["kept"]),
        **{f"{_ON_LOAD} {numbers}": lambda config: OnLoadLayers(config["numbers"]) for numbers in NUMBERS},
    }
)

# Scales of activations, which each step measures instead, and facts of the config.
_UNUSED: Final = (
    *("activation_scale", "input_scale", "input_zero_point", "input_global_scale"),
    *("weight_shape", "weight_format"),
    # bitsandbytes_scales.py reads these with absmax.
    *("nested_absmax", "nested_quant_map", "bitsandbytes__nf4", "bitsandbytes__fp4"),
)
COMPANIONS: Final = MappingProxyType(
    {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}
)
"""Files with a quantization_config, by quant_method."""
# gpt-oss: experts.gate_up_proj_blocks → experts.gate_up_proj.blocks
_OF_STACK: Final = re.compile(r"(gate_up_proj|down_proj)_(blocks|scales)")
_RENAMED: Final = MappingProxyType({"weight_scale_inv": "weight_scale"})


@dataclass(frozen=True)
class WeightScheme:
    """The scheme of a checkpoint; it may exclude layers by name."""

    method: str = ""
    """A key of SCHEMES; "" without quantisation."""
    config: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def formats(self) -> LayerFormats | None:
        # Not a field: only the config travels to other processes. Raises HubError.
        read = _READERS.get(self.method) or _UNNAMED_READERS.get(self.method)
        return None if read is None else read(self.config)

    @property
    def choose_method(self) -> str:
        """Return the module:function that chooses a layer's linear method."""
        return SCHEMES.get(self.method, _CHOOSE)

    @property
    def option(self) -> str:
        # of --quantization; "" for the scheme of a checkpoint
        if self.method in ("", GGUF):
            return self.method or "none"  # otherwise a GGUF file is kept
        return self.formats.numbers if isinstance(self.formats, OnLoadLayers) else ""

    @property
    def reads_tied_head(self) -> bool:
        # A head that is tied to the embedding is quantised from its floats.
        return isinstance(self.formats, OnLoadLayers)

    def parameter_name(self, tensor: str) -> str | None:
        """Return the name to look up for a tensor. None: it is not used.

        >>> WeightScheme("fp8").parameter_name("q_proj.weight_scale_inv")
        'q_proj.weight_scale'
        """
        if self.formats is None:
            return tensor
        if self.method == "bitsandbytes":
            tensor = tensor.replace(".weight.", ".")
        layer, _, last = tensor.rpartition(".")
        if last in _UNUSED:
            return None
        if self.method == "mxfp4":
            last = _OF_STACK.sub(r"\1.\2", last)
        return f"{layer}.{_RENAMED.get(last, last)}"


UNQUANTISED: Final = WeightScheme()


def read_scheme(quantization: Any) -> WeightScheme:
    """Return the scheme of a quantization_config. Raises HubError for one that is not supported."""
    if not quantization:
        return UNQUANTISED
    if not isinstance(quantization, Mapping):
        raise HubError(f"quantization_config must be an object: {NEXT_STEP}")
    method = quantization.get("quant_method")
    if method is None and (quantization.get("load_in_4bit") or quantization.get("load_in_8bit")):
        method = "bitsandbytes"  # its older configs do not name it
    if _describes_no_weights(quantization):
        return UNQUANTISED
    if not isinstance(method, str) or method not in SCHEMES:
        raise HubError(
            f"quant_method is {method!r}, and the supported ones are {', '.join(sorted(SCHEMES))}: {NEXT_STEP}"
        )
    scheme = WeightScheme(method, dict(quantization))
    _ = scheme.formats  # raises HubError
    return scheme


def chosen_scheme(option: str | None, checkpoint: WeightScheme) -> WeightScheme:
    """Return the scheme for --quantization. Raises HubError if it does not fit the checkpoint."""
    name = ALIASES.get(option or "", option)
    if name in (None, "none", "None", ALIASES.get(checkpoint.method, checkpoint.method)):
        return checkpoint
    if checkpoint != UNQUANTISED:
        raise HubError(
            f"--quantization {option}: the weights of this checkpoint are quantised already, with "
            f"{checkpoint.method}: leave the option out"
        )
    if name in NUMBERS:
        return WeightScheme(f"{_ON_LOAD} {name}", {"numbers": name})
    known = name in _READERS or name == GGUF
    what = "the weights of this checkpoint are not quantised" if known else "there is no such format"
    raise HubError(
        f"--quantization {option}: {what}: give {', '.join(NUMBERS)} to quantise floats when they are loaded, or "
        f"a checkpoint with {option if known else 'quantised'} weights without the option"
    )


def config_of_companion(path: Path) -> dict[str, Any] | None:
    """Return the quantization_config of older producers, which is in a file of its own."""
    for name, method in COMPANIONS.items():
        found = read_json_if_any(path / name)
        if method == "modelopt":
            found = found.get("quantization") or {}
            found = found if isinstance(found, dict) and found.get("quant_algo") else {}
        if found:
            return {"quant_method": method, **found}
    return None


def _describes_no_weights(quantization: Mapping[str, Any]) -> bool:
    method = quantization.get("quant_method")
    if method == "gguf":  # safetensors that transformers made from a GGUF file
        return True
    # llm-compressor writes only scales of the KV cache like this; weights would be in groups
    only_kv = bool(quantization.get("kv_cache_scheme")) and not quantization.get("config_groups")
    return method == "compressed-tensors" and only_kv
