"""Gemma (2024), Gemma 2 (2024) and Gemma 3's text models (2025) of Google: scaled embeddings, GELU, windows.

Norm weights are stored around 0. Gemma 2 adds norms of outputs, caps
scores and logits, and has a sliding window in every other layer. Gemma 3 normalises queries and keys instead
of capping, and rotates differently in layers with a window.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from torch import Tensor

from kvasir.hub.rope_parameters import FULL, SLIDING
from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.attention import HeadShape
from kvasir.layers.norm import OffsetRMSNorm
from kvasir.layers.qk_norm import norm_of_each_head
from kvasir.layers.rotary import Rope
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, Order, read_decoder, read_heads, read_windows
from kvasir.models.rope_config import RopeDefaults, read_whole_rope, rope_of

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


def read_gemma(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader, head_dim=256)
    rope = read_whole_rope(reader, heads.head_dim)
    for key in ("hidden_act", "hidden_activation"):
        reader.choice(key, "gelu_pytorch_tanh", _GEMMA1_ACTIVATIONS)
    layers = [LayerConfig(rope)] * reader.integer("num_hidden_layers")
    gemma = _gemma(reader, heads, layers, _TANH)
    reader.finish(NO_EFFECT)
    return gemma


def read_gemma2(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader, head_dim=256)
    rope = read_whole_rope(reader, heads.head_dim)
    window = reader.optional(reader.integer, "sliding_window", 4096)
    reader.require("sliding_window_size", window)
    layers = [LayerConfig(rope, entry) for entry in read_windows(reader, window, lambda index: index % 2 == 0)]
    gemma = replace(
        _sandwiched(reader, heads, layers),
        score_cap=reader.optional(reader.number, "attn_logit_softcapping", 50.0),
        logit_cap=reader.optional(reader.number, "final_logit_softcapping", 30.0),
    )
    reader.finish(NO_EFFECT)
    return gemma


def read_gemma3(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader, head_dim=256)
    everywhere, within_window = _ropes_of_gemma3(reader, heads)
    window = reader.optional(reader.integer, "sliding_window", 4096)
    every = reader.integer("sliding_window_pattern", reader.integer("_sliding_window_pattern", 6))
    windows = read_windows(reader, window, lambda index: (index + 1) % every != 0)
    layers = [LayerConfig(everywhere if entry is None else within_window, entry) for entry in windows]
    reader.require("attn_logit_softcapping", None, elsewhere=True)
    gemma = replace(
        _sandwiched(reader, heads, layers),
        qk_norm=norm_of_each_head(OffsetRMSNorm),
        logit_cap=reader.optional(reader.number, "final_logit_softcapping", None),
    )
    reader.finish(NO_EFFECT)
    return gemma


def _gemma(
    reader: ConfigReader, heads: HeadShape, layers: Sequence[LayerConfig], activation: Callable[[Tensor], Tensor]
) -> DecoderConfig:
    bias = reader.flag("attention_bias", False)
    reader.require("use_bidirectional_attention", False, elsewhere=True)
    config = read_decoder(reader, heads, layers, activation=activation, tied=True)
    return replace(
        config,
        norm=OffsetRMSNorm,
        embedding_scale=config.hidden_size**0.5,
        qkv_bias=bias,
        output_bias=bias,
    )


def _sandwiched(reader: ConfigReader, heads: HeadShape, layers: Sequence[LayerConfig]) -> DecoderConfig:
    activation = reader.choice("hidden_activation", "gelu_pytorch_tanh", ACTIVATIONS)
    reader.choice("hidden_act", "gelu_pytorch_tanh", {"gelu_pytorch_tanh": _TANH})  # repeated in old files
    return replace(
        _gemma(reader, heads, layers, activation),
        scale=reader.number("query_pre_attn_scalar", 256) ** -0.5,
        order=Order.AROUND,
        names=_SANDWICH,
    )


def _ropes_of_gemma3(reader: ConfigReader, heads: HeadShape) -> tuple[Rope, Rope]:
    full = RopeDefaults(heads.head_dim, reader.integer("max_position_embeddings"), theta=1e6)
    sections = reader.rope(by_layer=True)
    ropes = rope_of(sections.part(FULL), full), rope_of(sections.part(SLIDING), replace(full, theta=1e4))
    sections.finish()
    return ropes
