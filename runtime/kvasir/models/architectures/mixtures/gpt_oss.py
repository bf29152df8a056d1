"""gpt-oss (OpenAI, 2025): attention with sinks and alternating windows, experts with biases and a clamp."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from kvasir.layers.activation import ClampedSwiGLU
from kvasir.layers.moe.expert_routing import TopScores
from kvasir.layers.moe.experts import ExpertForm
from kvasir.layers.moe.sparse_moe import ExpertsConfig
from kvasir.models.architectures.mixtures.read_experts import ExpertCounts, read_counts
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads, read_windows
from kvasir.models.rope_config import RopeDefaults, read_rope

_NAMES: Final = MappingProxyType({"mlp.router": "mlp.gate"})
_NO_EFFECT: Final = frozenset(("experts_per_token", "initial_context_length"))


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader, head_dim=64)
    defaults = RopeDefaults(heads.head_dim, reader.integer("max_position_embeddings", 131072), theta=150000.0)
    rope = read_rope(reader, defaults)
    experts = _experts(reader)
    window = reader.optional(reader.integer, "sliding_window", 128)
    windows = read_windows(reader, window, lambda index: index % 2 == 0)
    bias = reader.flag("attention_bias", True)
    gpt_oss = replace(
        read_decoder(reader, heads, [LayerConfig(rope, entry, experts) for entry in windows], eps=1e-5),
        sinks=True,
        qkv_bias=bias,
        output_bias=bias,
        names=_NAMES,
    )
    reader.finish(NO_EFFECT | _NO_EFFECT)
    return gpt_oss


def _experts(reader: ConfigReader) -> ExpertsConfig:
    counts = read_counts(reader, "num_local_experts", "num_experts", defaults=ExpertCounts(128, 4))
    return ExpertsConfig(
        TopScores(*counts, renormalise=True),
        reader.integer("intermediate_size", 2880),
        activation=ClampedSwiGLU(reader.number("swiglu_alpha", 1.702), reader.number("swiglu_limit", 7.0)),
        form=ExpertForm(bias=True, transposed=True, alternating=True),
        router_bias=True,
    )
