"""Tensors that transformers' code does not read by itself: weights in FP8, and text models in multimodal ones."""

from typing import Final

import torch
from torch import Tensor

from kvasir.hub.model_info import ModelInfo
from kvasir.hub.text_part import text_tensor
from kvasir.hub.weights import weight_files
from kvasir.models.checkpoints.open_checkpoint import open_checkpoint
from kvasir.models.model_load_error import ModelLoadError

_SCALES: Final = (".weight_scale_inv", ".weight_scale")
_UNUSED: Final = (".activation_scale", ".input_scale")
_OWN_PREFIX: Final = ("lm_head.", "mtp.")


def read_tensors(info: ModelInfo, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the tensors by the names of the text model's own checkpoint, with weights of FP8 in `dtype`."""
    stored = {}
    for file in weight_files(info.path):
        with open_checkpoint(file) as tensors:
            for tensor in tensors:
                name = _name(tensor.origin.name, info)
                if name is not None and not name.endswith(_UNUSED):
                    stored[name] = tensor[(slice(None),) * len(tensor.shape)]
    block = info.weight_scheme.config.get("weight_block_size")
    names = [(name, end) for name in stored for end in _SCALES if name.endswith(end)]
    scales = {name.removesuffix(end): stored.pop(name) for name, end in names}
    for name, weight in stored.items():
        if weight.dtype == torch.float8_e4m3fn:
            layer = name.removesuffix(".weight")
            if layer not in scales:
                raise ModelLoadError(f"the checkpoint holds no scale for {name}: is it complete?")
            stored[name] = _floats(weight, scales[layer], block).to(dtype)
    return stored


def _name(name: str, info: ModelInfo) -> str | None:
    if not info.multimodal:
        return name
    text = text_tensor(name)
    return text if text is None or text.startswith(_OWN_PREFIX) else f"model.{text}"


def _floats(weight: Tensor, scale: Tensor, block: list[int] | None) -> Tensor:
    scale = scale.float()
    if block is not None:
        rows, columns = weight.shape[-2:]
        scale = scale.repeat_interleave(block[0], -2)[..., :rows, :].repeat_interleave(block[1], -1)[..., :columns]
    return weight.float() * scale
