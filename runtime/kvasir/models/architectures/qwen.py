"""Qwen2 (Yang et al., 2024), Qwen3 and Qwen3-MoE (Yang et al., 2025): Llama with biases, norms or experts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvasir.layers.norm import RMSNorm
from kvasir.layers.qk_norm import norm_of_each_head
from kvasir.layers.rotary import Rope
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import (
    DecoderConfig,
    ExpertsConfig,
    LayerConfig,
    read_decoder,
    read_heads,
    read_windows,
)
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.rope_config import read_whole_rope


def read_qwen2(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    layers = _layers_with_windows(reader, read_whole_rope(reader, heads.head_dim))
    qwen = replace(read_decoder(reader, heads, layers), qkv_bias=True)
    reader.finish(NO_EFFECT)
    return qwen


def read_qwen3(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader, head_dim=128)
    layers = _layers_with_windows(reader, read_whole_rope(reader, heads.head_dim))
    qwen = _normalised(reader, read_decoder(reader, heads, layers))
    reader.finish(NO_EFFECT)
    return qwen


def read_qwen3_moe(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    rope, experts = read_whole_rope(reader, heads.head_dim), _experts(reader)
    every, dense = reader.integer("decoder_sparse_step", 1), set(reader.integers("mlp_only_layers"))
    layers = [
        LayerConfig(rope, experts=None if index in dense or (index + 1) % every else experts)
        for index in range(reader.integer("num_hidden_layers"))
    ]
    qwen = _normalised(reader, read_decoder(reader, heads, layers))
    reader.require("use_sliding_window", False, elsewhere=True)
    reader.finish(NO_EFFECT | {"sliding_window", "max_window_layers"})  # of use_sliding_window
    return qwen


def _layers_with_windows(reader: ConfigReader, rope: Rope) -> list[LayerConfig]:
    window = reader.optional(reader.integer, "sliding_window", 4096)
    if not reader.flag("use_sliding_window", False):
        window = None
    first = reader.integer("max_window_layers", 28, least=0)
    windows = read_windows(reader, window, lambda index: window is not None and index >= first)
    return [LayerConfig(rope, window) for window in windows]


def _normalised(reader: ConfigReader, config: DecoderConfig) -> DecoderConfig:
    bias = reader.flag("attention_bias", False)
    return replace(config, qk_norm=norm_of_each_head(RMSNorm), qkv_bias=bias, output_bias=bias)


def _experts(reader: ConfigReader) -> ExpertsConfig:
    # transformers 5 writes num_local_experts; older files and those of the hub have num_experts.
    count = reader.integer("num_experts", reader.integer("num_local_experts", 128))
    top_k = reader.integer("num_experts_per_tok", 8)
    if top_k > count:
        raise ModelLoadError(f"config.json sets num_experts_per_tok to {top_k} and has {count} experts only")
    return ExpertsConfig(
        count=count,
        top_k=top_k,
        intermediate_size=reader.integer("moe_intermediate_size", 768),
        renormalise=reader.flag("norm_topk_prob", False),
    )
