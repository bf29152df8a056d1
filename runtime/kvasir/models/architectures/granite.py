"""Granite 3 and 4 (IBM, 2024, 2025), dense, and HyperCLOVA X SEED Think (Naver, 2025): Llama with multipliers."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, Order, read_decoder, read_heads
from kvasir.models.rope_config import read_whole_rope

_NAMES_OF_HYPERCLOVAX: Final = MappingProxyType(
    {"post_norm1": "attention_output_norm", "post_norm2": "mlp_output_norm"}
)


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    granite = replace(
        _granite(reader, scale=1.0),
        residual_scale=reader.number("residual_multiplier", 1.0),
        logit_scale=1 / reader.number("logits_scaling", 1.0),
    )
    reader.finish(NO_EFFECT)
    return granite


def read_hyperclovax(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    hyperclovax = replace(_granite(reader), logit_scale=reader.number("logits_scaling", 1.0))
    reader.require("residual_multiplier", 1.0, elsewhere=True)
    outputs = reader.flag("use_post_norm", True)
    reader.finish(NO_EFFECT)
    return replace(hyperclovax, order=Order.AROUND, names=_NAMES_OF_HYPERCLOVAX) if outputs else hyperclovax


def _granite(reader: ConfigReader, scale: float | None = None) -> DecoderConfig:
    # `scale` is a default. None: head_dim ** -0.5.
    heads = read_heads(reader)
    rope = read_whole_rope(reader, heads.head_dim)
    layers = [LayerConfig(rope)] * reader.integer("num_hidden_layers")
    bias = reader.flag("attention_bias", False)
    return replace(
        read_decoder(reader, heads, layers),
        scale=reader.number("attention_multiplier", scale or heads.head_dim**-0.5),
        embedding_scale=reader.number("embedding_multiplier", 1.0),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=reader.flag("mlp_bias", False),
    )
