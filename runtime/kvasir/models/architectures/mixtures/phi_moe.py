"""Phi-3.5-MoE (Microsoft, 2024): LayerNorm, and two experts that a sparse mixer chooses."""

from types import MappingProxyType
from typing import Final

from kvasir.layers.moe.expert_routing import SparseMixer
from kvasir.layers.moe.sparse_moe import ExpertsConfig
from kvasir.layers.norm import LayerNorm
from kvasir.models.architectures.mixtures import mixtral
from kvasir.models.architectures.mixtures.read_experts import ExpertCounts, read_counts
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_rope

_NAMES: Final = MappingProxyType({**mixtral.NAMES, "mlp.router": "mlp.gate"})


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    original = reader.integer("original_max_position_embeddings", reader.integer("max_position_embeddings"))
    rope = read_rope(reader, heads, theta=1e6, original_max_position_embeddings=original)
    counts = read_counts(reader, "num_local_experts", "num_experts", defaults=ExpertCounts(16, 2))
    reader.require("num_experts_per_tok", 2)
    mixer = SparseMixer(counts.experts, reader.number("router_jitter_noise", 0.01))
    experts = ExpertsConfig(mixer, reader.integer("intermediate_size"))
    window = reader.optional(reader.integer, "sliding_window", None)
    reader.ignore("input_jitter_noise")
    return read_decoder(
        reader,
        heads,
        LayerConfig(rope, window, experts),
        eps=1e-5,
        attention_bias=reader.flag("attention_bias", False),
        norm=LayerNorm,
        head_bias=reader.flag("lm_head_bias", False),
        names=_NAMES,
    )
