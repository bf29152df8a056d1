"""Write small models as GGUF files, with the names and formulas of llama.cpp's converter."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel

TOKENS = ["<unk>", "<s>", "</s>"]
_ARCHITECTURES = MappingProxyType(
    {
        "gemma": "gemma",
        "gemma2": "gemma2",
        "gemma3_text": "gemma3",
        "gpt2": "gpt2",
        "granite": "granite",
        "mixtral": "llama",
        "olmo2": "olmo2",
        "smollm3": "smollm3",
        "llama": "llama",
        "phi": "phi2",
        "phi3": "phi3",
        "qwen2": "qwen2",
        "qwen3": "qwen3",
        "qwen3_moe": "qwen3moe",
    }
)
_PERMUTED = frozenset(("granite", "llama", "mixtral", "smollm3"))
_PLAIN = gguf.GGMLQuantizationType.F32


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    kind: gguf.GGMLQuantizationType = _PLAIN,
    parts: int = 0,
    kinds: Mapping[str, gguf.GGMLQuantizationType] = MappingProxyType({}),
    general: Mapping[str, Any] = MappingProxyType({}),
    **keys: Any,
) -> Path:
    """Write a model with matrices of one type, or of `kinds` by a part of the name.

    `keys` are more of its architecture. `parts`: tensors in a file.
    """
    config = model.config
    architecture = _ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=parts)
    for key, value in (_keys(config) | keys).items():
        _add(writer, f"{architecture}.{key.replace('__', '.')}", value)
    for key, value in general.items():
        _add(writer, f"general.{key}", value)
    add_tokenizer(writer, config.vocab_size)
    for name, tensor in _tensors(model, architecture):
        array = tensor.float().numpy()
        own = next((kinds[part] for part in kinds if part in name), kind)
        if own != _PLAIN and array.ndim > 1 and array.shape[-1] % gguf.GGML_QUANT_SIZES[own][0] == 0:
            writer.add_tensor(name, gguf.quantize(array, own), raw_dtype=own)
        else:
            writer.add_tensor(name, np.ascontiguousarray(array))
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    tokens = TOKENS + [f"<0x{byte:02X}>" for byte in range(256)]
    types = [2, 3, 3, *[6] * 256]
    tokens, types = (tokens + [f"t{i}" for i in range(size)])[:size], (types + [1] * size)[:size]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(index) for index in range(size)])
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def _keys(config: Any) -> dict[str, Any]:
    intermediate = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    keys = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": intermediate or 4 * config.hidden_size,
        "attention.head_count": config.num_attention_heads,
    }
    if config.model_type == "gpt2":
        return keys | {"attention.layer_norm_epsilon": config.layer_norm_epsilon}
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    keys |= {
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.freq_base": rope["rope_theta"],
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1.0)),
    }
    if config.model_type == "phi":
        return keys | {"attention.layer_norm_epsilon": config.layer_norm_eps}
    if config.model_type in ("qwen3_moe", "mixtral"):
        keys |= {"expert_count": config.num_local_experts, "expert_used_count": config.num_experts_per_tok}
    if config.model_type == "qwen3_moe":
        keys["expert_feed_forward_length"] = config.moe_intermediate_size
    return keys | {"attention.layer_norm_rms_epsilon": config.rms_norm_eps}


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def _tensors(model: PreTrainedModel, architecture: str) -> Sequence[tuple[str, torch.Tensor]]:
    number = next(value for value, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    state = _with_stacked_experts({name: tensor.detach() for name, tensor in model.state_dict().items()})
    found = []
    for name, tensor in state.items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        found.append((target, _converted(tensor, name, model.config)))
    return found + _factors(getattr(model.config, "rope_parameters", None) or {}, model.config)


def _factors(rope: Mapping[str, Any], config: Any) -> list[tuple[str, torch.Tensor]]:
    if rope.get("rope_type") == "longrope":
        names = (("rope_factors_long.weight", "long_factor"), ("rope_factors_short.weight", "short_factor"))
        return [(name, torch.tensor(rope[key])) for name, key in names]
    if rope.get("rope_type") != "llama3":
        return []
    dim, factor, original = config.head_dim, rope["factor"], rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = original / (2 * torch.pi * rope["rope_theta"] ** (torch.arange(0, dim, 2) / dim))
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return [("rope_freqs.weight", 1 / ((1 - smooth) / factor + smooth))]


def _with_stacked_experts(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    # transformers 5 joins gate and up
    result: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if name.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            stem = name.removesuffix("gate_up_proj")
            result |= {f"{stem}gate_proj.weight": gate, f"{stem}up_proj.weight": up}
        else:
            result[f"{name}.weight" if name.endswith("experts.down_proj") else name] = tensor
    return result


def _converted(tensor: torch.Tensor, name: str, config: Any) -> torch.Tensor:
    if config.model_type in _PERMUTED and ".q_proj." in name:
        return _permuted(tensor, config.num_attention_heads)
    if config.model_type in _PERMUTED and ".k_proj." in name:
        return _permuted(tensor, config.num_key_value_heads)
    if config.model_type.startswith("gemma") and name.endswith("norm.weight"):
        return tensor + 1
    if config.model_type == "gpt2" and tensor.ndim == 2 and any(part in name for part in (".c_", "lm_head_")):
        return tensor.t()
    return tensor


def _permuted(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    # for rotating neighbours instead of halves
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)
