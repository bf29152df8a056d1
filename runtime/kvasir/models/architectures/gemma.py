"""Gemma (2024), Gemma 2 (2024) and Gemma 3's text models (2025) of Google: scaled embeddings, GELU, windows.

Norm weights are stored around 0. Gemma 2 adds norms of outputs, caps
scores and logits, and has a sliding window in every other layer. Gemma 3 normalises queries and keys instead
of capping, and rotates differently in layers with a window.
"""

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from kvasir.hub.rope_parameters import FULL, SLIDING
from kvasir.layers.activation import ACTIVATIONS, Activation
from kvasir.layers.attention import HeadShape
from kvasir.layers.norm import OffsetRMSNorm
from kvasir.layers.qk_norm import norm_of_each_head
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, Order, read_decoder, read_heads, read_windows
from kvasir.models.rope_config import RopeDefaults, read_rope, read_ropes

_TANH: Final = ACTIVATIONS["gelu_pytorch_tanh"]
# The first files name the exact function, and mean its approximation.
_GEMMA1_ACTIVATIONS: Final = MappingProxyType({"gelu": _TANH, "gelu_pytorch_tanh": _TANH})

_SANDWICH: Final = MappingProxyType(
    {
        "post_attention_layernorm": "attention_output_norm",
        "pre_feedforward_layernorm": "post_attention_layernorm",
        "post_feedforward_layernorm": "mlp_output_norm",
    }
)


def read_gemma(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader, head_dim=256)
    for key in ("hidden_act", "hidden_activation"):
        reader.choice(key, "gelu_pytorch_tanh", _GEMMA1_ACTIVATIONS)
    return _gemma(reader, heads, LayerConfig(read_rope(reader, heads)), _TANH)


def read_gemma2(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader, head_dim=256)
    rope = read_rope(reader, heads)
    window = reader.optional(reader.integer, "sliding_window", 4096)
    reader.require("sliding_window_size", window)
    return _sandwiched(
        reader,
        heads,
        [LayerConfig(rope, entry) for entry in read_windows(reader, window, lambda index: index % 2 == 0)],
        score_cap=reader.optional(reader.number, "attn_logit_softcapping", 50.0),
        logit_cap=reader.optional(reader.number, "final_logit_softcapping", 30.0),
    )


def read_gemma3(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader, head_dim=256)
    full = RopeDefaults(heads.head_dim, reader.integer("max_position_embeddings"), theta=1e6)
    ropes = read_ropes(reader, {FULL: full, SLIDING: replace(full, theta=1e4)})
    window = reader.optional(reader.integer, "sliding_window", 4096)
    every = reader.integer("sliding_window_pattern", reader.integer("_sliding_window_pattern", 6))
    windows = read_windows(reader, window, lambda index: (index + 1) % every != 0)
    reader.require("attn_logit_softcapping", None, elsewhere=True)
    return _sandwiched(
        reader,
        heads,
        [LayerConfig(ropes[FULL if entry is None else SLIDING], entry) for entry in windows],
        qk_norm=norm_of_each_head(OffsetRMSNorm),
        logit_cap=reader.optional(reader.number, "final_logit_softcapping", None),
    )


def _gemma(
    reader: ConfigReader,
    heads: HeadShape,
    layers: LayerConfig | Sequence[LayerConfig],
    activation: Activation,
    **fields: Any,
) -> DecoderConfig:
    reader.require("use_bidirectional_attention", False, elsewhere=True)
    return read_decoder(
        reader,
        heads,
        layers,
        activation=activation,
        tied=True,
        attention_bias=reader.flag("attention_bias", False),
        norm=OffsetRMSNorm,
        embedding_scale=reader.integer("hidden_size") ** 0.5,
        **fields,
    )


def _sandwiched(
    reader: ConfigReader, heads: HeadShape, layers: Sequence[LayerConfig], **fields: Any
) -> DecoderConfig:
    activation = reader.choice("hidden_activation", "gelu_pytorch_tanh", ACTIVATIONS)
    reader.choice("hidden_act", "gelu_pytorch_tanh", {"gelu_pytorch_tanh": _TANH})  # repeated in old files
    scale = reader.number("query_pre_attn_scalar", 256) ** -0.5
    return _gemma(reader, heads, layers, activation, scale=scale, order=Order.AROUND, names=_SANDWICH, **fields)
