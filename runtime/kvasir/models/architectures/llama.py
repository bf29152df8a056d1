"""Llama (Touvron et al., 2023), Llama 3 (Dubey et al., 2024), SmolLM: RMSNorm, rotary positions, GQA, SwiGLU."""

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
    attention_bias = reader.flag("attention_bias", False)
    llama = replace(
        read_decoder(reader, heads, layers),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=reader.flag("mlp_bias", False),
    )
    reader.finish(NO_EFFECT)
    return llama
