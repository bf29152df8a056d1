"""Tiny random models, written by transformers, and its logits as the reference."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

VOCAB = 256
SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}


def llama(**changes: Any) -> PreTrainedModel:
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
    return _randomised(LlamaForCausalLM(LlamaConfig(**SPECIAL | defaults | changes)))


def gpt2(**changes: Any) -> PreTrainedModel:
    defaults = {
        "vocab_size": VOCAB,
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 256,
        "initializer_range": 0.2,
    }
    return _randomised(GPT2LMHeadModel(GPT2Config(**SPECIAL | defaults | changes)))


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

MODELS: Mapping[str, Callable[[], PreTrainedModel]] = MappingProxyType(
    {
        "llama-gqa": llama,
        "llama-mha-tied": lambda: llama(num_key_value_heads=4, tie_word_embeddings=True),
        "llama-biases": lambda: llama(attention_bias=True, mlp_bias=True),
        "llama-wide-heads": lambda: llama(head_dim=32, num_key_value_heads=1, hidden_act="gelu"),
        "llama3-rope": lambda: llama(rope_parameters=LLAMA3_ROPE),
        "llama-linear-rope": lambda: llama(
            rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
        ),
        "gpt2": gpt2,
        "gpt2-variant": lambda: gpt2(
            scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False, n_inner=96, tie_word_embeddings=False
        ),
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
    return model.eval()


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, prompt: list[int], outputs: list[int]) -> torch.Tensor:
    """[len(outputs), vocabulary]: the logits that the reference gives for each output's place."""
    logits: torch.Tensor = model(torch.tensor([prompt + outputs])).logits
    return logits[0, len(prompt) - 1 : -1].float()


def _randomised(model: PreTrainedModel) -> PreTrainedModel:
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
    return model.eval()
