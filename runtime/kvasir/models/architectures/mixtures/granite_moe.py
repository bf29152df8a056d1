"""Granite 3 with experts (IBM, 2024): Granite with a mixture of experts, and in some a shared expert."""

from types import MappingProxyType
from typing import Final

from kvasir.layers.moe.expert_routing import TopScores
from kvasir.layers.moe.sparse_moe import ExpertsConfig, SharedExpert
from kvasir.models.architectures.mixtures.read_experts import ExpertCounts, read_counts
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_rope

_NAMES: Final = MappingProxyType(
    {
        "block_sparse_moe": "mlp",
        "block_sparse_moe.input_linear": "mlp.experts.gate_up_proj",
        "block_sparse_moe.output_linear": "mlp.experts.down_proj",
        "block_sparse_moe.router": "mlp.gate",
        "block_sparse_moe.router.layer": "mlp.gate",
        "shared_mlp.input_linear": "mlp.shared_expert.gate_up_proj",
        "shared_mlp.output_linear": "mlp.shared_expert.down_proj",
    }
)


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    counts = read_counts(reader, "num_local_experts", "num_experts", defaults=ExpertCounts(8, 2))
    shared = reader.integer("shared_intermediate_size", 0, least=0)
    experts = ExpertsConfig(
        TopScores(*counts, renormalise=True),
        reader.integer("intermediate_size"),
        shared=SharedExpert(shared) if shared else None,
    )
    return read_decoder(
        reader,
        heads,
        LayerConfig(read_rope(reader, heads), None, experts),
        attention_bias=reader.flag("attention_bias", False),
        scale=reader.number("attention_multiplier", 1.0),
        embedding_scale=reader.number("embedding_multiplier", 1.0),
        residual_scale=reader.number("residual_multiplier", 1.0),
        logit_scale=1 / reader.number("logits_scaling", 1.0),
        names=_NAMES,
    )
