"""Llama 4 (Meta, 2025), the text models: layers without positions, experts whose inputs are weighted.

Attention by chunks equals full attention while a context fits into one chunk, and queries do not grow before
`floor_scale`. Contexts end there: kvasir.hub.model_info limits them.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from kvasir.layers.activation import sigmoid
from kvasir.layers.moe.expert_routing import TopScores
from kvasir.layers.moe.experts import ExpertForm
from kvasir.layers.moe.sparse_moe import ExpertsConfig, SharedExpert
from kvasir.layers.qk_norm import L2Norm
from kvasir.models.architectures.mixtures.read_experts import ExpertCounts, read_counts
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_rope

_NAMES: Final = MappingProxyType({"feed_forward": "mlp", "feed_forward.router": "mlp.gate"})
_LAYER_TYPES: Final = MappingProxyType({"full_attention": None, "chunked_attention": None})
# Of long contexts and of training.
_NO_EFFECT: Final = (
    *("attention_chunk_size", "attn_scale", "attn_temperature_tuning", "floor_scale"),
    *("for_llm_compressor", "router_jitter_noise"),
)


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads, count = read_heads(reader, head_dim=128), reader.integer("num_hidden_layers")
    reader.choices("layer_types", count, _LAYER_TYPES)
    reader.change({"layer_types": None})  # both kinds compute the same here
    rope = read_rope(reader, heads, theta=5e5, interleaved=True)
    rotated, mixed, experts = _rotated(reader, count), _mixed(reader, count), _experts(reader)
    layers = [
        LayerConfig(
            rope if rotates else None,
            experts=experts if index in mixed else None,
            qk_norm=bool(rotates),
        )
        for index, rotates in zip(range(count), rotated, strict=True)
    ]
    reader.ignore(*_NO_EFFECT)
    return read_decoder(
        reader,
        heads,
        layers,
        intermediate_size=reader.integer("intermediate_size_mlp", 16384),
        eps=1e-5,
        attention_bias=reader.flag("attention_bias", False),
        # Without weights, a norm before the rotation equals one after it.
        qk_norm=L2Norm if reader.flag("use_qk_norm", True) else None,
        names=_NAMES,
    )


def _rotated(reader: ConfigReader, count: int) -> Sequence[int]:
    every = reader.integer("no_rope_layer_interval", 4)
    given = reader.integers("no_rope_layers")  # 1: the layer is rotated
    return given or [int((index + 1) % every != 0) for index in range(count)]


def _mixed(reader: ConfigReader, count: int) -> Sequence[int]:
    step = reader.integer("interleave_moe_layer_step", 1)
    return reader.integers("moe_layers") or range(step - 1, count, step)


def _experts(reader: ConfigReader) -> ExpertsConfig:
    counts = read_counts(reader, "num_local_experts", "num_experts", defaults=ExpertCounts(16, 1))
    inner = reader.integer("intermediate_size", 8192)
    return ExpertsConfig(
        TopScores(*counts, score=sigmoid),
        inner,
        form=ExpertForm(transposed=True),
        shared=SharedExpert(inner),
        weights_inputs=True,
    )
