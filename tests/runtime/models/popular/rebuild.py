"""Builds the checkpoints of checkpoints.toml as small random models, with tensors named and packed as published."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import gguf
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from kvasir.hub.model_info import merged
from kvasir.hub.quantisation.layer_names import Layer
from kvasir.hub.source import fetch
from kvasir.hub.text_part import text_config
from kvasir.hub.weight_scheme import WeightScheme, config_of_companion, read_scheme
from runtime.gguf_files import add_tokenizer, finish, write_gguf
from runtime.models.quantised import packers

FILE: Final = Path(__file__).parent / "checkpoints.toml"
Entry = Mapping[str, Any]

_SIZES: Final = MappingProxyType(
    {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
        "pad_token_id": None,
    }
)
_PACKERS: Final = MappingProxyType[str, Callable[[tuple[int, int]], packers.Pair]](
    {
        "AWQ": lambda shape: packers.awq(shape, 128),
        "FP8": lambda shape: packers.fp8(shape, (), "weight_scale_inv"),
        "FP8 in blocks": lambda shape: packers.fp8(
            shape, (-(-shape[0] // 128), -(-shape[1] // 128)), "weight_scale_inv"
        ),
        "GPTQ": lambda shape: packers.gptq(shape, 4, 128),
        "ModelOpt, FP8": lambda shape: packers.fp8(shape, ()),
        "bitsandbytes, NF4": lambda shape: packers.nf4(shape, nested=True),
        "compressed-tensors, FP8": lambda shape: packers.fp8(shape, (shape[0], 1)),
        "compressed-tensors, INT4": lambda shape: packers.compressed(shape, 4, 128),
        "compressed-tensors, INT8": lambda shape: packers.int8(shape, (shape[0], 1)),
    }
)
_LINEAR: Final = re.compile(r"(?:_proj|\.w[123]|indexer\.w[kq]_?b?)\.weight$")
_NOT_OF_MODEL: Final = ("architectures", "auto_map", "quantization_config")
_OTHER_TENSORS: Final = MappingProxyType(
    {
        "model.language_model.": ("model.visual.patch_embed.proj.bias",),
        "language_model.model.": ("vision_tower.patch_conv.weight", "multi_modal_projector.linear_1.weight"),
    }
)


def entries() -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for entry in tomllib.loads(FILE.read_text())["checkpoint"]:
        config = entry.get("config", {})
        if "like" in entry:
            config = merged(found[entry["like"]]["config"], config)
        found[entry["name"]] = {"weights": "floats", "served": "natively", **entry, "config": config}
    return found


def rebuilt(entry: Entry, path: Path) -> Path:
    path.mkdir()
    config = dict(entry["config"])
    sizes = {name: size for name, size in _SIZES.items() if name not in entry.get("without", ())}
    if "text_config" in config:
        config["text_config"] = {**sizes, **config["text_config"]}
    else:
        config = {**sizes, **config}
    if entry["weights"].startswith("GGUF"):
        return fetch(f"file://{_gguf(entry, config, path / 'model.gguf')}", weights=True)
    tensors = {} if entry["served"] == "refused" else _floats(config, path)
    (path / "config.json").write_text(json.dumps(config))
    for name, content in entry.get("files", {}).items():
        (path / name).write_text(json.dumps(content))
    scheme = read_scheme(config.get("quantization_config") or config_of_companion(path))
    tensors = {_renamed(name, entry): tensor for name, tensor in _packed(entry, scheme, tensors).items()}
    tensors |= {name: torch.zeros(1) for name in _OTHER_TENSORS.get(entry.get("prefix", ""), ())}
    tensors |= {name: torch.zeros(1) for name in entry.get("others", ())}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    return path


def _floats(config: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    """Return random tensors under the names of the text model's own checkpoint."""
    _model(config).save_pretrained(path)
    return load_file(path / "model.safetensors")


def _model(config: Mapping[str, Any]) -> transformers.PreTrainedModel:
    text = text_config(config, {}) or config
    model_class = getattr(transformers, text["architectures"][0])
    kept = {name: value for name, value in text.items() if name not in _NOT_OF_MODEL}
    if "attn_temperature_tuning" in kept:  # 4 in Llama 4's files; transformers 5.24 accepts only booleans
        kept["attn_temperature_tuning"] = bool(kept["attn_temperature_tuning"])
    model: transformers.PreTrainedModel = model_class(model_class.config_class(**kept))
    return model


def _renamed(name: str, entry: Entry) -> str:
    root, _, rest = name.partition(".")
    if root in ("model", "transformer"):
        return f"{entry.get('prefix', root + '.')}{rest}"
    return f"language_model.{name}" if entry.get("prefix", "").startswith("language_model.") else name


def _packed(entry: Entry, scheme: WeightScheme, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if scheme.formats is None:
        return dict(tensors)
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer = name.removesuffix(".weight").removeprefix("model.")
        stacked = re.search(r"mlp\.experts\.(gate_up|down)_proj$", name)
        if entry["weights"] == "MXFP4" and stacked:
            numbers, exponents, _ = packers.mxfp4(*tensor.transpose(1, 2).shape)
            found |= {f"{name}_blocks": numbers.unflatten(2, (-1, 16)), f"{name}_scales": exponents}
        elif _LINEAR.search(name) and scheme.formats.format_of(Layer((layer,), ".experts." in layer)):
            for last, part in _PACKERS[entry["weights"]]((tensor.shape[0], tensor.shape[1]))[0].items():
                found[f"{name.removesuffix('.weight')}.{last}"] = part
        else:
            found[name] = tensor
    return found


def _gguf(entry: Entry, config: Mapping[str, Any], path: Path) -> Path:
    if entry["served"] != "refused":
        return write_gguf(path, _model(config), kind=gguf.GGMLQuantizationType.Q8_0)
    writer = gguf.GGUFWriter(path, entry["gguf"])
    add_tokenizer(writer, 300)
    finish(writer)
    return path
