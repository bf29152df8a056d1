"""Granite 3 and 4 (IBM, 2024 and 2025), the dense models: Llama with multipliers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_whole_rope


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    rope = read_whole_rope(reader, heads.head_dim)
    layers = [LayerConfig(rope)] * reader.integer("num_hidden_layers")
    bias = reader.flag("attention_bias", False)
    granite = replace(
        read_decoder(reader, heads, layers),
        scale=reader.number("attention_multiplier", 1.0),
        embedding_scale=reader.number("embedding_multiplier", 1.0),
        residual_scale=reader.number("residual_multiplier", 1.0),
        logit_scale=1 / reader.number("logits_scaling", 1.0),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=reader.flag("mlp_bias", False),
    )
    reader.finish(NO_EFFECT)
    return granite
