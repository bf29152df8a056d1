"""Tiny random mixtures of experts, written by transformers, one for each special feature."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from transformers import (
    Dots1Config,
    Ernie4_5_MoeConfig,
    Ernie4_5Config,
    Glm4MoeConfig,
    GptOssConfig,
    GraniteMoeConfig,
    GraniteMoeSharedConfig,
    HunYuanMoEV1Config,
    Llama4TextConfig,
    MiniMaxM2Config,
    MixtralConfig,
    OlmoeConfig,
    PhimoeConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2MoeConfig,
)

from runtime.models.tiny import LONG_ROPE, YARN_ROPE, decoder


def mixture(config: type[PreTrainedConfig], **changes: Any) -> PreTrainedModel:
    """A decoder whose corrections of scores are random, too: transformers keeps them in buffers."""
    model = decoder(config, **changes)
    generator = torch.Generator().manual_seed(5)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.3)
    return model


MIXTURES: Mapping[str, Callable[[], PreTrainedModel]] = MappingProxyType(
    {
        "gpt-oss": lambda: mixture(
            GptOssConfig,
            intermediate_size=64,
            head_dim=32,
            sliding_window=19,
            num_local_experts=4,
            num_experts_per_tok=2,
            swiglu_limit=0.8,
            rope_parameters={**YARN_ROPE, "truncate": False},
        ),
        "mixtral": lambda: mixture(MixtralConfig, num_local_experts=4, num_experts_per_tok=2, sliding_window=20),
        "qwen2-moe": lambda: mixture(
            Qwen2MoeConfig,
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=48,
            shared_expert_intermediate_size=80,
            mlp_only_layers=[1],
        ),
        "glm4-moe": lambda: mixture(
            Glm4MoeConfig,
            n_routed_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=48,
            n_group=4,
            topk_group=2,
            routed_scaling_factor=2.5,
            use_qk_norm=True,
            attention_bias=True,
            head_dim=32,
            num_nextn_predict_layers=0,
        ),
        "dots1": lambda: mixture(
            Dots1Config,
            n_routed_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=48,
            n_shared_experts=2,
            first_k_dense_replace=1,
            sliding_window=21,
            max_window_layers=2,
        ),
        "minimax-m2": lambda: mixture(
            MiniMaxM2Config, num_local_experts=8, num_experts_per_tok=3, head_dim=32, rotary_dim=16
        ),
        "ernie": lambda: mixture(Ernie4_5Config, head_dim=32, use_bias=True),
        "ernie-moe": lambda: mixture(
            Ernie4_5_MoeConfig, moe_num_experts=8, moe_k=3, moe_intermediate_size=48, moe_num_shared_experts=2
        ),
        "granite-moe": lambda: mixture(
            GraniteMoeConfig,
            num_local_experts=8,
            num_experts_per_tok=3,
            attention_multiplier=0.2,
            embedding_multiplier=1.5,
            residual_multiplier=0.7,
            logits_scaling=3.0,
        ),
        "granite-moe-shared": lambda: mixture(
            GraniteMoeSharedConfig, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=48
        ),
        "phi-moe": lambda: mixture(
            PhimoeConfig,
            num_local_experts=8,
            router_jitter_noise=0.2,
            attention_bias=True,
            lm_head_bias=True,
            original_max_position_embeddings=256,
            rope_parameters={
                **LONG_ROPE,
                "short_factor": [1.0 + 0.1 * index for index in range(8)],
                "long_factor": [1.0 + index for index in range(8)],
                "partial_rotary_factor": 1.0,
                "short_mscale": 1.2,
                "long_mscale": 1.2,
                "original_max_position_embeddings": 256,
            },
        ),
        "hunyuan-moe": lambda: mixture(
            HunYuanMoEV1Config,
            num_experts=8,
            moe_topk=[3, 3, 3],
            head_dim=16,
            rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0},
        ),
        "llama4": lambda: mixture(
            Llama4TextConfig,
            num_local_experts=4,
            num_experts_per_tok=1,
            head_dim=16,
            intermediate_size_mlp=80,
            interleave_moe_layer_step=2,
            no_rope_layer_interval=3,
            attention_chunk_size=256,
            floor_scale=256,
        ),
        "olmoe": lambda: mixture(OlmoeConfig, num_experts=8, num_experts_per_tok=3),
    }
)
