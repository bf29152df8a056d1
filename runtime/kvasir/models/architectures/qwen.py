"""Qwen2 (Yang et al., 2024) and Qwen3 (Yang et al., 2025), also with experts: Llama with biases or norms."""

from collections.abc import Sequence

from kvasir.layers.attention import HeadShape
from kvasir.layers.moe.expert_routing import TopScores
from kvasir.layers.moe.sparse_moe import ExpertsConfig, SharedExpert
from kvasir.layers.norm import RMSNorm
from kvasir.layers.qk_norm import norm_of_each_head
from kvasir.layers.rotary import Rope
from kvasir.models.architectures.mixtures.read_experts import ExpertCounts, read_counts
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads, read_windows
from kvasir.models.rope_config import read_rope


def read_qwen2(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    return read_decoder(reader, heads, _layers_with_windows(reader, read_rope(reader, heads)), qkv_bias=True)


def read_qwen2_moe(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    shared = SharedExpert(reader.integer("shared_expert_intermediate_size", 5632), gated=True)
    experts = _experts(reader, ExpertCounts(60, 4), inner=1408, shared=shared)
    layers = _sparse_layers(reader, read_rope(reader, heads), experts)
    return read_decoder(reader, heads, layers, qkv_bias=reader.flag("qkv_bias", True))


def read_qwen3(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader, head_dim=128)
    return _normalised(reader, heads, _layers_with_windows(reader, read_rope(reader, heads)))


def read_qwen3_moe(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    experts = _experts(reader, ExpertCounts(128, 8), inner=768)
    for name, value in (("use_qk_norm", True), ("qkv_bias", False), ("shared_expert_intermediate_size", 0)):
        reader.require(name, value)  # in the files of Qwen3-Coder
    return _normalised(reader, heads, _sparse_layers(reader, read_rope(reader, heads), experts))


def _layers_with_windows(reader: ConfigReader, rope: Rope) -> list[LayerConfig]:
    window = reader.optional(reader.integer, "sliding_window", 4096)
    if not reader.flag("use_sliding_window", False):
        window = None
    first = reader.integer("max_window_layers", 28, least=0)
    windows = read_windows(reader, window, lambda index: window is not None and index >= first)
    return [LayerConfig(rope, window) for window in windows]


def _normalised(reader: ConfigReader, heads: HeadShape, layers: Sequence[LayerConfig]) -> DecoderConfig:
    bias = reader.flag("attention_bias", False)
    return read_decoder(reader, heads, layers, attention_bias=bias, qk_norm=norm_of_each_head(RMSNorm))


def _experts(
    reader: ConfigReader, defaults: ExpertCounts, inner: int, shared: SharedExpert | None = None
) -> ExpertsConfig:
    # transformers 5 writes num_local_experts; older files and those of the hub have num_experts.
    counts = read_counts(reader, "num_experts", "num_local_experts", defaults=defaults)
    return ExpertsConfig(
        TopScores(*counts, renormalise=reader.flag("norm_topk_prob", False)),
        reader.integer("moe_intermediate_size", inner),
        shared=shared,
    )


def _sparse_layers(reader: ConfigReader, rope: Rope, experts: ExpertsConfig) -> list[LayerConfig]:
    reader.require("use_sliding_window", False, elsewhere=True)
    reader.ignore("sliding_window", "max_window_layers")  # of use_sliding_window
    every, dense = reader.integer("decoder_sparse_step", 1), set(reader.integers("mlp_only_layers"))
    return [
        LayerConfig(rope, experts=None if index in dense or (index + 1) % every else experts)
        for index in range(reader.integer("num_hidden_layers"))
    ]
