"""Hunyuan-A13B (Tencent, 2025): Hunyuan with a mixture of experts and a shared expert in each layer."""

from types import MappingProxyType
from typing import Any, Final

from kvasir.layers.moe.expert_routing import TopScores
from kvasir.layers.moe.sparse_moe import ExpertsConfig, SharedExpert
from kvasir.layers.norm import RMSNorm
from kvasir.layers.qk_norm import norm_of_each_head
from kvasir.models.architectures.hunyuan import read_alpha_rope
from kvasir.models.architectures.mixtures.read_experts import ExpertCounts, read_counts
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads

_NAMES: Final = MappingProxyType(
    {
        "shared_mlp": "shared_expert",
        "mlp.gate.wg": "mlp.gate",
        "query_layernorm": "q_norm",
        "key_layernorm": "k_norm",
    }
)
# Tencent's files have a list of numbers by layer.
_BY_LAYER: Final = ("moe_intermediate_size", "moe_topk", "num_experts", "num_shared_expert")
_REQUIRED: Final = MappingProxyType(
    {"use_qk_norm": True, "norm_type": "rms", "use_cla": False, "moe_layer_num_skipped": 0, "num_shared_expert": 1}
)


def read_config(reader: ConfigReader) -> DecoderConfig:
    reader.change({key: _one(reader.raw(key)) for key in _BY_LAYER})
    heads, inner = read_heads(reader), reader.integer("intermediate_size")
    counts = read_counts(reader, "num_experts", "num_local_experts", top_k="moe_topk", defaults=ExpertCounts(1, 1))
    experts = ExpertsConfig(
        TopScores(*counts, renormalise=True), inner, shared=SharedExpert(inner), exact_router=True
    )
    for key, value in (*_REQUIRED.items(), ("moe_intermediate_size", inner)):
        reader.require(key, value)
    reader.ignore("cla_share_factor", "eod_token_id", "moe_drop_tokens", "use_mixed_mlp_moe")
    return read_decoder(
        reader,
        heads,
        LayerConfig(read_alpha_rope(reader, heads), None, experts),
        eps=1e-5,
        attention_bias=reader.flag("attention_bias", False),
        qk_norm=norm_of_each_head(RMSNorm),
        rotates_first=True,
        names=_NAMES,
    )


def _one(values: Any) -> Any:
    equal = isinstance(values, list) and values and all(value == values[0] for value in values)
    return values[0] if equal else values
