"""Command R (2024), R7B and A (2025), of Cohere: parallel layers, LayerNorm without bias, GPT-J's rotation.

In Cohere 2, layers with a window are rotated, and those without do not see positions.
"""

from collections.abc import Sequence
from typing import Any

from kvasir.layers.attention import HeadShape
from kvasir.layers.norm import UnbiasedLayerNorm
from kvasir.layers.qk_norm import LayerNormOfHeads
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, Order, read_decoder, read_heads, read_windows
from kvasir.models.rope_config import read_rope


def read_cohere(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    layer = LayerConfig(read_rope(reader, heads, theta=5e5, interleaved=True))
    return _cohere(reader, heads, layer, qk_norm=LayerNormOfHeads if reader.flag("use_qk_norm", False) else None)


def read_cohere2(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    rope = read_rope(reader, heads, interleaved=True)
    window = reader.optional(reader.integer, "sliding_window", 4096)
    every = reader.integer("sliding_window_pattern", reader.integer("_sliding_window_pattern", 4))
    windows = read_windows(reader, window, lambda index: (index + 1) % every != 0)
    reader.require("position_embedding_type", "rope_gptj")
    return _cohere(reader, heads, [LayerConfig(rope if entry else None, entry) for entry in windows])


def _cohere(
    reader: ConfigReader, heads: HeadShape, layers: LayerConfig | Sequence[LayerConfig], **fields: Any
) -> DecoderConfig:
    reader.require("head_dim", reader.integer("hidden_size") // heads.heads)
    return read_decoder(
        reader,
        heads,
        layers,
        eps=1e-5,
        eps_key="layer_norm_eps",
        tied=True,
        attention_bias=reader.flag("attention_bias", False),
        order=Order.PARALLEL,
        norm=UnbiasedLayerNorm,
        logit_scale=reader.number("logit_scale", 0.0625),
        **fields,
    )
