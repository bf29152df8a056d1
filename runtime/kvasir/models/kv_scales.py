"""The scales of an fp8 KV cache in a checkpoint: one number for K and one for V of each layer, as in vLLM.

model.layers.0.self_attn.k_scale            compressed-tensors
model.layers.0.self_attn.attn.k_scale       vLLM
model.layers.0.self_attn.k_proj.k_scale     ModelOpt
model.layers.0.self_attn.qkv_proj.k_scale
model.layers.0.self_attn.kv_scale           for K and V, in older checkpoints
"""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from safetensors import safe_open
from torch import Tensor

from kvasir.layers.attention import KVScales
from kvasir.models.model_load_error import ModelLoadError

_NAME: Final = re.compile(
    r"(?:.+\.)?(\d+)\.(?:self_)?att(?:n|ention)"
    r"(?:(?:\.(?:attn|qkv_proj))?\.(kv|k|v|q|prob)|\.q_proj\.(q)|\.k_proj\.(k)|\.v_proj\.(v))_scale"
)
# Queries and attention weights are not in 8 bits here.
_PARTS: Final = MappingProxyType({"k": ("K",), "v": ("V",), "kv": ("K", "V"), "q": (), "prob": ()})

log = logging.getLogger(__name__)


def is_kv_scale(tensor: str) -> bool:
    return _NAME.fullmatch(tensor) is not None


def read_kv_scales(files: Sequence[Path], num_layers: int) -> dict[int, KVScales]:
    """Return the scales by layer of the whole model, without layers that have none.

    Raises ModelLoadError, which names the tensor, for a scale that cannot be used.
    """
    found: dict[tuple[int, str], float] = {}
    for file in files:
        with safe_open(file, framework="pt") as checkpoint:
            for name in filter(is_kv_scale, checkpoint.keys()):
                layer, part = _place(name)
                tensor = f"tensor {name!r} in {file}"
                if layer >= num_layers:
                    raise ModelLoadError(f"{tensor} has no place in this model of {num_layers} layers")
                for each in _PARTS[part]:
                    if (layer, each) in found:
                        raise ModelLoadError(f"{tensor} is the second scale of {each} of its layer")
                    found[layer, each] = _number(checkpoint.get_tensor(name), tensor)
    if not found:
        log.warning(
            "the checkpoint has no scales for an fp8 KV cache: they are 1, and numbers beyond 448 are cut off. "
            "Compare answers with those of --kv-cache-dtype auto"
        )
    return {layer: _both(found, layer) for layer in sorted({layer for layer, _ in found})}


def _place(tensor: str) -> tuple[int, str]:
    match = _NAME.fullmatch(tensor)
    assert match is not None
    return int(match[1]), next(part for part in match.groups()[1:] if part)


def _number(scale: Tensor, tensor: str) -> float:
    if scale.numel() != 1:
        raise ModelLoadError(f"{tensor} has {scale.numel()} numbers: only one scale for all heads is supported")
    number = float(scale)
    if not (math.isfinite(number) and number > 0):
        raise ModelLoadError(f"{tensor} is {number}, and a scale must be above 0")
    return number


def _both(found: Mapping[tuple[int, str], float], layer: int) -> KVScales:
    for part in ("K", "V"):
        if (layer, part) not in found:
            raise ModelLoadError(f"the checkpoint has no scale of {part} for layer {layer}: is it complete?")
    return KVScales(found[layer, "K"], found[layer, "V"])
