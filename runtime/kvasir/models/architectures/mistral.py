"""Mistral (Jiang et al., 2023): Llama with a sliding window in every layer, or in none."""

from collections.abc import Mapping
from typing import Any

from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_whole_rope


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    rope = read_whole_rope(reader, heads.head_dim)
    window = reader.optional(reader.integer, "sliding_window", 4096)
    layers = [LayerConfig(rope, window)] * reader.integer("num_hidden_layers")
    mistral = read_decoder(reader, heads, layers)
    reader.finish(NO_EFFECT)
    return mistral
