"""MiniMax-M2 (MiniMax, 2025): norms over all heads of queries and keys, experts chosen by corrected sigmoids."""

from types import MappingProxyType
from typing import Final

from kvasir.layers.activation import sigmoid
from kvasir.layers.moe.expert_routing import TopScores
from kvasir.layers.moe.sparse_moe import ExpertsConfig
from kvasir.layers.qk_norm import ProjectionRMSNorm
from kvasir.models.architectures.mixtures import mixtral
from kvasir.models.architectures.mixtures.read_experts import ExpertCounts, read_counts
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_rope

_NAMES: Final = MappingProxyType(
    {
        **mixtral.NAMES,
        "block_sparse_moe.e_score_correction_bias": "mlp.router.correction",
        "mlp.e_score_correction_bias": "mlp.router.correction",
    }
)
_REQUIRED: Final = MappingProxyType(
    {"scoring_func": "sigmoid", "use_routing_bias": True, "qk_norm_type": "per_layer", "use_qk_norm": True}
)


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader, head_dim=128)
    partial = reader.integer("rotary_dim", heads.head_dim) / heads.head_dim
    counts = read_counts(reader, "num_local_experts", "num_experts", defaults=ExpertCounts(256, 8))
    routing = TopScores(*counts, renormalise=True, score=sigmoid, corrected=True)
    experts = ExpertsConfig(routing, reader.integer("intermediate_size"))
    for key, value in _REQUIRED.items():
        reader.require(key, value)
    reader.ignore("router_jitter_noise", "shared_intermediate_size")
    return read_decoder(
        reader,
        heads,
        LayerConfig(read_rope(reader, heads, theta=5e6, partial=partial), None, experts),
        qk_norm=ProjectionRMSNorm,
        names=_NAMES,
        unused=("mtp",),
    )
