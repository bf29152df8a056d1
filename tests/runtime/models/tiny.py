"""Tiny random models, written by transformers, and its logits as the reference.

Windows are shorter than the tests' contexts, so that they cut something off.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import (
    ArceeConfig,
    AutoModelForCausalLM,
    Cohere2Config,
    CohereConfig,
    Exaone4Config,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    Glm4Config,
    GlmConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GraniteConfig,
    HeliumConfig,
    HunYuanDenseV1Config,
    HyperCLOVAXConfig,
    LlamaConfig,
    Ministral3Config,
    MinistralConfig,
    MistralConfig,
    NemotronConfig,
    Olmo2Config,
    Olmo3Config,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SeedOssConfig,
    SmolLM3Config,
    StableLmConfig,
    Starcoder2Config,
)

VOCAB = 256
SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}


def decoder(config: type[PreTrainedConfig], **changes: Any) -> PreTrainedModel:
    """A model of the Llama family."""
    defaults = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
    }
    return randomised(AutoModelForCausalLM.from_config(config(**SPECIAL | defaults | changes)))


def llama(**changes: Any) -> PreTrainedModel:
    return decoder(LlamaConfig, **changes)


def gpt2(**changes: Any) -> PreTrainedModel:
    defaults = {
        "vocab_size": VOCAB,
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 256,
        "initializer_range": 0.2,
    }
    return randomised(GPT2LMHeadModel(GPT2Config(**SPECIAL | defaults | changes)))


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 8.0,
    "original_max_position_embeddings": 64,
}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.5, 1.8, 2.0],
    "long_factor": [1.0, 2.0, 4.0, 8.0, 9.0, 10.0],
    "partial_rotary_factor": 0.75,
}
MOE = {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48}

MODELS: Mapping[str, Callable[[], PreTrainedModel]] = MappingProxyType(
    {
        "llama-gqa": llama,
        "llama-mha-tied": lambda: llama(num_key_value_heads=4, tie_word_embeddings=True),
        "llama-biases": lambda: llama(attention_bias=True, mlp_bias=True),
        "llama-wide-heads": lambda: llama(head_dim=32, num_key_value_heads=1, hidden_act="gelu"),
        "llama3-rope": lambda: llama(rope_parameters=LLAMA3_ROPE),
        "llama-dynamic-rope": lambda: llama(
            rope_parameters={"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0}
        ),
        "llama-linear-rope": lambda: llama(
            rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
        ),
        "llama-yarn-rope": lambda: llama(rope_parameters=YARN_ROPE),
        "mistral": lambda: decoder(MistralConfig, sliding_window=19, head_dim=32),
        "mistral-without-window": lambda: decoder(MistralConfig, sliding_window=None),
        "qwen2": lambda: decoder(Qwen2Config, tie_word_embeddings=True),
        "qwen2-window": lambda: decoder(
            Qwen2Config, use_sliding_window=True, sliding_window=24, max_window_layers=1
        ),
        "qwen3": lambda: decoder(Qwen3Config, head_dim=32, tie_word_embeddings=True),
        "qwen3-biases": lambda: decoder(Qwen3Config, head_dim=16, attention_bias=True),
        "qwen3-moe": lambda: decoder(Qwen3MoeConfig, **MOE, norm_topk_prob=True),
        "qwen3-moe-and-dense": lambda: decoder(Qwen3MoeConfig, **MOE, mlp_only_layers=[0], decoder_sparse_step=2),
        "gemma": lambda: decoder(GemmaConfig, head_dim=32, num_key_value_heads=1),
        "gemma2": lambda: decoder(
            Gemma2Config,
            head_dim=24,
            sliding_window=21,
            query_pre_attn_scalar=20,
            attn_logit_softcapping=3.0,
            final_logit_softcapping=5.0,
        ),
        "gemma3": lambda: decoder(
            Gemma3TextConfig,
            head_dim=32,
            sliding_window=17,
            num_hidden_layers=6,
            sliding_window_pattern=3,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        ),
        "phi3": lambda: decoder(Phi3Config, sliding_window=30),
        "phi3-long": lambda: decoder(
            Phi3Config, original_max_position_embeddings=4, rope_parameters=LONG_ROPE, tie_word_embeddings=True
        ),
        "phi3-short": lambda: decoder(Phi3Config, original_max_position_embeddings=256, rope_parameters=LONG_ROPE),
        "phi": lambda: decoder(PhiConfig, partial_rotary_factor=0.5),
        "phi-normalised": lambda: decoder(PhiConfig, qk_layernorm=True, num_key_value_heads=4),
        "gpt2": gpt2,
        "gpt2-variant": lambda: gpt2(
            scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False, n_inner=96, tie_word_embeddings=False
        ),
    }
)


SMALL = {"intermediate_size": 48}
FULL = ["full_attention"] * 3
FALCON = {"num_key_value_heads": None}
NEW_FALCON = {"new_decoder_architecture": True, "num_kv_heads": 2}
NEOX = SMALL | {"num_key_value_heads": None}

FAMILIES: Mapping[str, Callable[[], PreTrainedModel]] = MappingProxyType(
    {
        "arcee": lambda: decoder(ArceeConfig, **SMALL, mlp_bias=True),
        "cohere": lambda: decoder(CohereConfig, **SMALL, logit_scale=0.3, use_qk_norm=True),
        "cohere2": lambda: decoder(Cohere2Config, **SMALL, sliding_window=18, sliding_window_pattern=3),
        "exaone4": lambda: decoder(Exaone4Config, **SMALL, sliding_window=18, sliding_window_pattern=3),
        "exaone4-full": lambda: decoder(Exaone4Config, **SMALL, sliding_window=None, layer_types=FULL),
        "falcon": lambda: decoder(FalconConfig, **FALCON),
        "falcon-serial": lambda: decoder(FalconConfig, **FALCON, multi_query=False, parallel_attn=False, bias=True),
        "falcon-new": lambda: decoder(FalconConfig, **FALCON, **NEW_FALCON),
        "falcon2": lambda: decoder(FalconConfig, **FALCON, **NEW_FALCON, num_ln_in_parallel_attn=1),
        "glm": lambda: decoder(GlmConfig, **SMALL, head_dim=16),
        "glm4": lambda: decoder(Glm4Config, **SMALL, head_dim=16),
        "gpt-neox": lambda: decoder(GPTNeoXConfig, **NEOX),
        "gpt-neox-serial": lambda: decoder(GPTNeoXConfig, **NEOX, use_parallel_residual=False, rotary_pct=1.0),
        "granite": lambda: decoder(
            GraniteConfig,
            **SMALL,
            attention_multiplier=0.2,
            embedding_multiplier=3.0,
            logits_scaling=1.5,
            residual_multiplier=0.7,
        ),
        "hyperclovax": lambda: decoder(HyperCLOVAXConfig, **SMALL, logits_scaling=0.5, embedding_multiplier=2.0),
        "helium": lambda: decoder(HeliumConfig, **SMALL, head_dim=16),
        "hunyuan": lambda: decoder(
            HunYuanDenseV1Config,
            **SMALL,
            head_dim=16,
            rope_parameters={"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 1e4},
        ),
        "ministral": lambda: decoder(
            MinistralConfig, **SMALL, head_dim=16, sliding_window=18, layer_types=["sliding_attention", *FULL[1:]]
        ),
        "ministral3": lambda: decoder(
            Ministral3Config,
            **SMALL,
            head_dim=16,
            rope_parameters=YARN_ROPE
            | {"original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0}
            | {"llama_4_scaling_beta": 0.3},
        ),
        "nemotron": lambda: decoder(NemotronConfig, **SMALL),
        "olmo2": lambda: decoder(Olmo2Config, **SMALL),
        "olmo3": lambda: decoder(
            Olmo3Config,
            **SMALL,
            sliding_window=18,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            rope_parameters={"full_attention": YARN_ROPE, "sliding_attention": {"rope_type": "default"}},
        ),
        "opt": lambda: decoder(OPTConfig, ffn_dim=48, word_embed_proj_dim=64, num_key_value_heads=None),
        "seed-oss": lambda: decoder(SeedOssConfig, **SMALL, head_dim=16, attention_out_bias=True),
        "smollm3": lambda: decoder(
            SmolLM3Config, **SMALL, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=18
        ),
        "stablelm": lambda: decoder(StableLmConfig, **SMALL, use_qkv_bias=True),
        "stablelm-parallel": lambda: decoder(StableLmConfig, **SMALL, use_parallel_residual=True),
        "starcoder2": lambda: decoder(Starcoder2Config, **SMALL, sliding_window=18),
    }
)


def save(model: PreTrainedModel, path: Path) -> Path:
    model.save_pretrained(path)
    return path


def load_reference(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    """A saved model in this precision.

    Loaded and not converted: `model.bfloat16()` rounds the rotary frequencies too, and `.float()` leaves them so.
    """
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    model.eval()
    return model


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, prompt: list[int], outputs: list[int]) -> torch.Tensor:
    """[len(outputs), vocabulary]: the logits that the reference gives for each output's place."""
    logits: torch.Tensor = model(torch.tensor([prompt + outputs])).logits
    return logits[0, len(prompt) - 1 : -1].float()


def randomised(model: PreTrainedModel) -> PreTrainedModel:
    """transformers starts biases at 0 and norms at 1, where an error in using them would not show."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            parameter.data.copy_(noise * 0.3 + (1.0 if "norm" in name or "ln_" in name else 0.0))
            if name.endswith("bias"):
                parameter.data.copy_(noise * 0.3)
        else:
            parameter.data.copy_(noise * 0.2)
    model.eval()
    return model
