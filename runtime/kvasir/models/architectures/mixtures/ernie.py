"""ERNIE 4.5 (Baidu, 2025): Llama whose pairs of neighbours turn, also with experts chosen by corrected scores."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

from kvasir.layers.attention import HeadShape
from kvasir.layers.moe.expert_routing import TopScores
from kvasir.layers.moe.sparse_moe import ExpertsConfig, SharedExpert
from kvasir.models.architectures.mixtures.read_experts import ExpertCounts, read_counts
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_rope

_NAMES: Final = MappingProxyType(
    {
        "shared_experts": "shared_expert",
        "mlp.moe_statics.e_score_correction_bias": "mlp.router.correction",
        "mlp.gate.moe_statics.e_score_correction_bias": "mlp.router.correction",
    }
)


def read_ernie(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader, head_dim=128)
    return _ernie(reader, heads, LayerConfig(read_rope(reader, heads, theta=5e5, interleaved=True)))


def read_ernie_moe(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    rope = read_rope(reader, heads, theta=5e5, interleaved=True)
    experts, count = _experts(reader), reader.integer("num_hidden_layers")
    first, every = reader.integer("moe_layer_start_index", 1, least=0), reader.integer("moe_layer_interval", 1)
    last = reader.integer("moe_layer_end_index", -1, least=-1) % count
    layers = [
        LayerConfig(rope, experts=experts if first <= index <= last and (index + 1) % every == 0 else None)
        for index in range(count)
    ]
    reader.require("moe_norm_min", 1e-12)
    return _ernie(reader, heads, layers, names=_NAMES, unused=("mtp",))


def _ernie(
    reader: ConfigReader, heads: HeadShape, layers: LayerConfig | Sequence[LayerConfig], **fields: Any
) -> DecoderConfig:
    bias = reader.flag("use_bias", False)
    return read_decoder(reader, heads, layers, eps=1e-5, tied=True, attention_bias=bias, mlp_bias=bias, **fields)


def _experts(reader: ConfigReader) -> ExpertsConfig:
    counts = read_counts(reader, "moe_num_experts", "num_experts", top_k="moe_k", defaults=ExpertCounts(64, 6))
    inner = reader.integer("moe_intermediate_size", 1536)
    shared = reader.integer("moe_num_shared_experts", 2, least=0)
    return ExpertsConfig(
        TopScores(*counts, renormalise=True, corrected=True),
        inner,
        shared=SharedExpert(shared * inner, bias=reader.flag("use_bias", False)) if shared else None,
        exact_router=True,
    )
