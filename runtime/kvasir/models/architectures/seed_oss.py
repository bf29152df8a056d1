"""Seed-OSS (ByteDance Seed, 2025): Llama with biases on q, k and v."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_whole_rope


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader, head_dim=128)
    rope = read_whole_rope(reader, heads.head_dim)
    layers = [LayerConfig(rope)] * reader.integer("num_hidden_layers")
    seed = replace(
        read_decoder(reader, heads, layers),
        qkv_bias=reader.flag("attention_bias", True),
        output_bias=reader.flag("attention_out_bias", False),
        mlp_bias=reader.flag("mlp_bias", False),
    )
    reader.finish(NO_EFFECT | {"residual_dropout"})
    return seed
