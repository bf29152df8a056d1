"""Phi-3.5-MoE (Microsoft, 2024): LayerNorm, and two experts that a sparse mixer chooses."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from kvasir.layers.moe.expert_routing import SparseMixer
from kvasir.layers.moe.sparse_moe import ExpertsConfig
from kvasir.layers.norm import LayerNorm
from kvasir.models.architectures.mixtures import mixtral
from kvasir.models.architectures.mixtures.read_experts import ExpertCounts, read_counts
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import RopeDefaults, read_rope

_NAMES: Final = MappingProxyType({**mixtral.NAMES, "mlp.router": "mlp.gate"})


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    longest = reader.integer("max_position_embeddings")
    original = reader.integer("original_max_position_embeddings", longest)
    defaults = RopeDefaults(heads.head_dim, longest, theta=1e6, original_max_position_embeddings=original)
    counts = read_counts(reader, "num_local_experts", "num_experts", defaults=ExpertCounts(16, 2))
    reader.require("num_experts_per_tok", 2)
    mixer = SparseMixer(counts.experts, reader.number("router_jitter_noise", 0.01))
    experts = ExpertsConfig(mixer, reader.integer("intermediate_size"))
    window = reader.optional(reader.integer, "sliding_window", None)
    layers = [LayerConfig(read_rope(reader, defaults), window, experts)] * reader.integer("num_hidden_layers")
    bias = reader.flag("attention_bias", False)
    phi = replace(
        read_decoder(reader, heads, layers, eps=1e-5),
        norm=LayerNorm,
        qkv_bias=bias,
        output_bias=bias,
        head_bias=reader.flag("lm_head_bias", False),
        names=_NAMES,
    )
    reader.finish(NO_EFFECT | {"input_jitter_noise"})
    return phi
