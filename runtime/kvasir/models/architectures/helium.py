"""Helium 1 (Kyutai, 2025): Llama with GPT-J's rotation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import RopeDefaults, read_rope


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader, head_dim=128)
    rope = read_rope(reader, RopeDefaults(heads.head_dim, reader.integer("max_position_embeddings"), theta=1e5))
    layers = [LayerConfig(replace(rope, interleaved=True))] * reader.integer("num_hidden_layers")
    helium = replace(
        read_decoder(reader, heads, layers, eps=1e-8),
        qkv_bias=reader.flag("attention_bias", False),
        mlp_bias=reader.flag("mlp_bias", False),
    )
    reader.finish(NO_EFFECT)
    return helium
