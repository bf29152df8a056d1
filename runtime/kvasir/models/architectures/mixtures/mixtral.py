"""Mixtral (Jiang et al., 2024): Mistral with a mixture of experts in each layer."""

from types import MappingProxyType
from typing import Final

from kvasir.layers.moe.expert_routing import TopScores
from kvasir.layers.moe.sparse_moe import ExpertsConfig
from kvasir.models.architectures.mixtures.read_experts import ExpertCounts, read_counts
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_rope

# Also of other models, whose first files were in the form of Mixtral.
NAMES: Final = MappingProxyType({"block_sparse_moe": "mlp", "w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"})


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    counts = read_counts(reader, "num_local_experts", "num_experts", defaults=ExpertCounts(8, 2))
    experts = ExpertsConfig(TopScores(*counts, renormalise=True), reader.integer("intermediate_size"))
    window = reader.optional(reader.integer, "sliding_window", None)
    reader.ignore("router_jitter_noise")
    layer = LayerConfig(read_rope(reader, heads, theta=1e6), window, experts)
    return read_decoder(reader, heads, layer, eps=1e-5, names=NAMES)
