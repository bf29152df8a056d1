"""The names that tensors of a GGUF file have in the checkpoint that it was made from."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

# Numbers that the config has instead.
IN_CONFIG: Final = re.compile(r"(blk\.\d+\.)?rope_(freqs|factors_long|factors_short)\.weight")
EXPERTS: Final = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)_exps\.weight")

_LLAMA: Final = MappingProxyType({
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate",
})  # fmt: skip
_SANDWICH: Final = _LLAMA | {
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_OLMO2: Final = _LLAMA | {
    "post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_PHI3: Final = _LLAMA | {"ffn_up": "mlp.gate_up_proj"}
_PHI: Final = _LLAMA | {
    "output_norm": "model.final_layernorm", "attn_output": "self_attn.dense",
    "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2",
}  # fmt: skip
_GPT2: Final = {
    "token_embd": "transformer.wte", "position_embd": "transformer.wpe", "output_norm": "transformer.ln_f",
    "output": "lm_head", "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    names: Mapping[str, str]
    layers: str = "model.layers"
    # Queries and keys are ordered for rotating neighbours, not halves.
    interleaved: bool = False
    # Norms hold 1 + the weight of the checkpoint.
    offset_norms: bool = False
    # GPT-2's matrices are [inputs, outputs].
    transposed: frozenset[str] = field(default_factory=frozenset)


# by model_type of config.json
FAMILIES: Final = MappingProxyType(
    {
        "gemma": Family(_LLAMA, offset_norms=True),
        "gemma2": Family(_SANDWICH, offset_norms=True),
        "gemma3_text": Family(_SANDWICH, offset_norms=True),
        "gpt2": Family(
            _GPT2,
            layers="transformer.h",
            transposed=frozenset(("attn_qkv", "attn_output", "ffn_up", "ffn_down")),
        ),
        "granite": Family(_LLAMA, interleaved=True),
        "llama": Family(_LLAMA, interleaved=True),
        "mixtral": Family(_LLAMA, interleaved=True),
        "olmo2": Family(_OLMO2),
        "phi": Family(_PHI),
        "phi3": Family(_PHI3),
        "qwen2": Family(_LLAMA),
        "qwen3": Family(_LLAMA),
        "qwen3_moe": Family(_LLAMA),
        "smollm3": Family(_LLAMA, interleaved=True),
    }
)


def leaf_of(tensor: str) -> str:
    """Return the part of a name that identifies the kind of a tensor.

    >>> leaf_of("blk.3.attn_q.weight"), leaf_of("output.weight")
    ('attn_q', 'output')
    """
    return tensor.split(".")[-2] if "." in tensor else ""


def checkpoint_name(tensor: str, family: Family) -> str:
    """Return the name of a tensor; an unknown one keeps its own, which no model has.

    >>> checkpoint_name("blk.3.attn_q.weight", FAMILIES["llama"])
    'model.layers.3.self_attn.q_proj.weight'
    """
    if match := EXPERTS.fullmatch(tensor):
        return f"{family.layers}.{match[1]}.mlp.experts.{match[2]}_proj.weight"
    path, leaf = tensor.split("."), leaf_of(tensor)
    name = f"{family.names.get(leaf, leaf)}.{path[-1]}"
    return f"{family.layers}.{path[1]}.{name}" if path[0] == "blk" else name
