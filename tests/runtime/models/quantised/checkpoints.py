"""Small models in pairs: quantised weights of random integers, and the floats that they stand for.

path, floats = write_pair(folder, CONFIG, packer)
assert_alike(path, floats)
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from kvasir.hub.model_info import ModelFiles
from kvasir.parallel.parallel_state import SINGLE, ParallelState
from runtime.models.split_answers import answers

# Of a layer's name and shape [outputs, inputs]: its tensors by the last part of their names, and its floats. None:
# the layer is not quantised.
Packer = Callable[[str, tuple[int, int]], tuple[Mapping[str, Tensor], Tensor] | None]

HIDDEN: Final = 64
_HEADS: Final = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
_SIZES: Final = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "vocab_size": 96,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "dtype": "float32",
    **_HEADS,
}
LLAMA: Final = {
    **_SIZES,
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "intermediate_size": 128,
}
# Its checkpoints have q, k and v in one tensor, and gate and up in another.
PHI3: Final = {**LLAMA, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"]}
MOE: Final = {
    **_SIZES,
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "intermediate_size": 128,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}


def linear_layers(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    layers = {"lm_head": (config["vocab_size"], HIDDEN)}
    heads = config["head_dim"]
    for index in range(config["num_hidden_layers"]):
        block = f"model.layers.{index}"
        if config["model_type"] == "phi3":
            layers |= {f"{block}.self_attn.qkv_proj": (8 * heads, HIDDEN), f"{block}.self_attn.o_proj": (64, 64)}
            layers |= {f"{block}.mlp.gate_up_proj": (256, HIDDEN), f"{block}.mlp.down_proj": (HIDDEN, 128)}
            continue
        for name, count in {"q": 4, "k": 2, "v": 2}.items():
            layers[f"{block}.self_attn.{name}_proj"] = (count * heads, HIDDEN)
        layers[f"{block}.self_attn.o_proj"] = (HIDDEN, 4 * heads)
        mlps = {f"{block}.mlp": config["intermediate_size"]}
        if experts := config.get("num_experts"):
            layers[f"{block}.mlp.gate"] = (experts, HIDDEN)
            mlps = {f"{block}.mlp.experts.{expert}": config["moe_intermediate_size"] for expert in range(experts)}
        for mlp, inner in mlps.items():
            layers |= {f"{mlp}.gate_proj": (inner, HIDDEN), f"{mlp}.up_proj": (inner, HIDDEN)}
            layers[f"{mlp}.down_proj"] = (HIDDEN, inner)
    return layers


def other_tensors(config: Mapping[str, Any]) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(3)
    tensors = {"model.embed_tokens.weight": torch.randn(config["vocab_size"], HIDDEN, generator=draw)}
    norms = {"model.norm": HIDDEN}
    for index in range(config["num_hidden_layers"]):
        block = f"model.layers.{index}"
        norms |= {f"{block}.input_layernorm": HIDDEN, f"{block}.post_attention_layernorm": HIDDEN}
        if "num_experts" in config:
            norms |= {f"{block}.self_attn.{part}_norm": config["head_dim"] for part in "qk"}
    return tensors | {f"{name}.weight": 1 + 0.3 * torch.randn(size, generator=draw) for name, size in norms.items()}


def write_pair(
    folder: Path, quantization: Mapping[str, Any], pack: Packer, config: Mapping[str, Any] = LLAMA
) -> tuple[Path, Path]:
    """Write a quantised checkpoint, and the model with the floats that its weights stand for."""
    draw = torch.Generator().manual_seed(11)
    packed = other_tensors(config)
    floats = dict(packed)
    for name, shape in linear_layers(config).items():
        both = pack(name, shape)
        if both is None:
            plain = 0.2 * torch.randn(shape, generator=draw)
            both = {"weight": plain}, plain
        packed |= {f"{name}.{last}": tensor.contiguous() for last, tensor in both[0].items()}
        floats[f"{name}.weight"] = both[1].contiguous()
    return (
        write(folder / "packed", {**config, "quantization_config": dict(quantization)}, packed),
        write(folder / "floats", config, floats),
    )


def write(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(dict(config)))
    save_file(dict(tensors), path / "model.safetensors")
    return path


def assert_alike(
    path: Path, floats: Path, parallel: ParallelState = SINGLE, quantization: str | None = None
) -> None:
    found = answers(path, parallel, ModelFiles(quantization=quantization))
    for request, (tokens, logprobs) in answers(floats, SINGLE).items():
        assert found[request][0] == tokens
        torch.testing.assert_close(torch.tensor(found[request][1]), torch.tensor(logprobs), atol=1e-3, rtol=0)
