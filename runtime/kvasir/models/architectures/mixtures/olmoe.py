"""OLMoE (Muennighoff et al., 2024): norms over all heads of queries and keys, and many small experts."""

from kvasir.layers.moe.expert_routing import TopScores
from kvasir.layers.moe.sparse_moe import ExpertsConfig
from kvasir.layers.qk_norm import ProjectionRMSNorm
from kvasir.models.architectures.mixtures.read_experts import ExpertCounts, read_counts
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_rope


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    counts = read_counts(reader, "num_experts", "num_local_experts", defaults=ExpertCounts(64, 8))
    routing = TopScores(*counts, renormalise=reader.flag("norm_topk_prob", False))
    experts = ExpertsConfig(routing, reader.integer("intermediate_size", 2048))
    reader.require("clip_qkv", None, elsewhere=True)
    return read_decoder(
        reader,
        heads,
        LayerConfig(read_rope(reader, heads), None, experts),
        eps=1e-5,
        attention_bias=reader.flag("attention_bias", False),
        qk_norm=ProjectionRMSNorm,
    )
