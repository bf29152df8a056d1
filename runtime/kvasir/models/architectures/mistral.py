"""Mistral (Jiang et al., 2023) and Ministral (2024): Llama with a sliding window in every layer, some, or none.

In Ministral 3 (2025), queries grow with their position.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from kvasir.layers.rotary import QueryGrowth, Rope
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads, read_windows
from kvasir.models.rope_config import RopeDefaults, read_whole_rope, rope_of

# transformers' own, for a config.json without a rotation.
_ROPE_OF_MINISTRAL3: Final = MappingProxyType(
    {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }
)


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    rope = read_whole_rope(reader, heads.head_dim)
    window = reader.optional(reader.integer, "sliding_window", 4096)
    layers = [LayerConfig(rope, window)] * reader.integer("num_hidden_layers")
    mistral = read_decoder(reader, heads, layers)
    reader.finish(NO_EFFECT)
    return mistral


def read_ministral(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    rope = read_whole_rope(reader, heads.head_dim)
    window = reader.optional(reader.integer, "sliding_window", 4096)
    windows = read_windows(reader, window, lambda index: window is not None)
    ministral = read_decoder(reader, heads, [LayerConfig(rope, entry) for entry in windows])
    reader.finish(NO_EFFECT)
    return ministral


def read_ministral3(config: Mapping[str, Any]) -> DecoderConfig:
    if not (config.get("rope_parameters") or config.get("rope_scaling")):
        config = {**config, "rope_parameters": dict(_ROPE_OF_MINISTRAL3)}
    reader = ConfigReader(config)
    heads = read_heads(reader, head_dim=128)
    rope = _growing_rope(reader, RopeDefaults(heads.head_dim, reader.integer("max_position_embeddings")))
    window = reader.optional(reader.integer, "sliding_window", None)
    layers = [LayerConfig(rope, window)] * reader.integer("num_hidden_layers")
    ministral = read_decoder(reader, heads, layers, eps=1e-5)
    reader.finish(NO_EFFECT)
    return ministral


def _growing_rope(reader: ConfigReader, defaults: RopeDefaults) -> Rope:
    section = reader.rope(by_layer=False)
    growth = None
    if section.is_set("llama_4_scaling_beta"):
        beta = section.number("llama_4_scaling_beta")
        growth = QueryGrowth(beta, section.integer("original_max_position_embeddings"))
    section.is_set("max_position_embeddings")  # repeated
    return replace(rope_of(section, defaults), query_growth=growth)
