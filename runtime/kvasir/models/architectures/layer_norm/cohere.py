"""Command R (2024), R7B and A (2025), of Cohere: parallel layers, LayerNorm without bias, GPT-J's rotation.

In Cohere 2, layers with a window are rotated, and those without do not see positions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvasir.layers.attention import HeadShape
from kvasir.layers.norm import UnbiasedLayerNorm
from kvasir.layers.qk_norm import LayerNormOfHeads
from kvasir.layers.rotary import Rope
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import (
    DecoderConfig,
    LayerConfig,
    Order,
    read_decoder,
    read_heads,
    read_windows,
)
from kvasir.models.rope_config import RopeDefaults, read_rope


def read_cohere(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    rope = _rope(reader, heads, theta=5e5)
    cohere = replace(
        _cohere(reader, heads, [LayerConfig(rope)] * reader.integer("num_hidden_layers")),
        qk_norm=LayerNormOfHeads if reader.flag("use_qk_norm", False) else None,
    )
    reader.finish(NO_EFFECT)
    return cohere


def read_cohere2(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    rope = _rope(reader, heads, theta=1e4)
    window = reader.optional(reader.integer, "sliding_window", 4096)
    every = reader.integer("sliding_window_pattern", reader.integer("_sliding_window_pattern", 4))
    windows = read_windows(reader, window, lambda index: (index + 1) % every != 0)
    cohere = _cohere(reader, heads, [LayerConfig(rope if entry else None, entry) for entry in windows])
    reader.require("position_embedding_type", "rope_gptj")
    reader.finish(NO_EFFECT)
    return cohere


def _rope(reader: ConfigReader, heads: HeadShape, theta: float) -> Rope:
    defaults = RopeDefaults(heads.head_dim, reader.integer("max_position_embeddings"), theta)
    return replace(read_rope(reader, defaults), interleaved=True)


def _cohere(reader: ConfigReader, heads: HeadShape, layers: Sequence[LayerConfig]) -> DecoderConfig:
    bias = reader.flag("attention_bias", False)
    reader.require("head_dim", reader.integer("hidden_size") // heads.heads)
    return replace(
        read_decoder(reader, heads, layers, tied=True),
        eps=reader.number("layer_norm_eps", 1e-5),
        order=Order.PARALLEL,
        norm=UnbiasedLayerNorm,
        qkv_bias=bias,
        output_bias=bias,
        logit_scale=reader.number("logit_scale", 0.0625),
    )
