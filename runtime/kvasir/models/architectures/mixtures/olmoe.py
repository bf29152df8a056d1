"""OLMoE (Muennighoff et al., 2024): norms over all heads of queries and keys, and many small experts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvasir.layers.moe.expert_routing import TopScores
from kvasir.layers.moe.sparse_moe import ExpertsConfig
from kvasir.layers.qk_norm import ProjectionRMSNorm
from kvasir.models.architectures.mixtures.read_experts import ExpertCounts, read_counts
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_whole_rope


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    counts = read_counts(reader, "num_experts", "num_local_experts", defaults=ExpertCounts(64, 8))
    routing = TopScores(*counts, renormalise=reader.flag("norm_topk_prob", False))
    experts = ExpertsConfig(routing, reader.integer("intermediate_size", 2048))
    layer = LayerConfig(read_whole_rope(reader, heads.head_dim), None, experts)
    bias = reader.flag("attention_bias", False)
    olmoe = replace(
        read_decoder(reader, heads, [layer] * reader.integer("num_hidden_layers"), eps=1e-5),
        qk_norm=ProjectionRMSNorm,
        qkv_bias=bias,
        output_bias=bias,
    )
    reader.require("clip_qkv", None, elsewhere=True)
    reader.finish(NO_EFFECT)
    return olmoe
