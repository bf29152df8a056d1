"""gpt-oss (OpenAI, 2025): attention with sinks and alternating windows, experts with biases and a clamp."""

from types import MappingProxyType
from typing import Final

from kvasir.layers.activation import ClampedSwiGLU
from kvasir.layers.moe.expert_routing import TopScores
from kvasir.layers.moe.experts import ExpertForm
from kvasir.layers.moe.sparse_moe import ExpertsConfig
from kvasir.models.architectures.mixtures.read_experts import ExpertCounts, read_counts
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads, read_windows
from kvasir.models.rope_config import read_rope

_NAMES: Final = MappingProxyType({"mlp.router": "mlp.gate"})


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader, head_dim=64)
    rope = read_rope(reader, heads, longest=131072, theta=150000.0)
    experts = _experts(reader)
    window = reader.optional(reader.integer, "sliding_window", 128)
    windows = read_windows(reader, window, lambda index: index % 2 == 0)
    reader.ignore("experts_per_token", "initial_context_length")
    return read_decoder(
        reader,
        heads,
        [LayerConfig(rope, entry, experts) for entry in windows],
        eps=1e-5,
        attention_bias=reader.flag("attention_bias", True),
        sinks=True,
        names=_NAMES,
    )


def _experts(reader: ConfigReader) -> ExpertsConfig:
    counts = read_counts(reader, "num_local_experts", "num_experts", defaults=ExpertCounts(128, 4))
    return ExpertsConfig(
        TopScores(*counts, renormalise=True),
        reader.integer("intermediate_size", 2880),
        activation=ClampedSwiGLU(reader.number("swiglu_alpha", 1.702), reader.number("swiglu_limit", 7.0)),
        form=ExpertForm(bias=True, transposed=True, alternating=True),
        router_bias=True,
    )
