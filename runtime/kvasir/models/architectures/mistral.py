"""Mistral (Jiang et al., 2023) and Ministral (2024): Llama with a sliding window in every layer, some, or none.

In Ministral 3 (2025), queries grow with their position.
"""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from kvasir.layers.rotary import QueryGrowth, Rope
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads, read_windows
from kvasir.models.rope_config import RopeDefaults, read_rope, rope_of

# transformers' own, for a config.json without a rotation.
_ROPE_OF_MINISTRAL3: Final = MappingProxyType({
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
    "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
})  # fmt: skip


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    window = reader.optional(reader.integer, "sliding_window", 4096)
    return read_decoder(reader, heads, LayerConfig(read_rope(reader, heads), window))


def read_ministral(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    rope = read_rope(reader, heads)
    window = reader.optional(reader.integer, "sliding_window", 4096)
    windows = read_windows(reader, window, lambda index: window is not None)
    return read_decoder(reader, heads, [LayerConfig(rope, entry) for entry in windows])


def read_ministral3(reader: ConfigReader) -> DecoderConfig:
    if not (reader.is_set("rope_parameters") or reader.is_set("rope_scaling")):
        reader.change({"rope_parameters": dict(_ROPE_OF_MINISTRAL3)})
    heads = read_heads(reader, head_dim=128)
    rope = _growing_rope(reader, RopeDefaults(heads.head_dim, reader.integer("max_position_embeddings")))
    window = reader.optional(reader.integer, "sliding_window", None)
    return read_decoder(reader, heads, LayerConfig(rope, window), eps=1e-5)


def _growing_rope(reader: ConfigReader, defaults: RopeDefaults) -> Rope:
    section = reader.rope(by_layer=False)
    growth = None
    if section.is_set("llama_4_scaling_beta"):
        beta = section.number("llama_4_scaling_beta")
        growth = QueryGrowth(beta, section.integer("original_max_position_embeddings"))
    section.ignore("max_position_embeddings")  # repeated
    return replace(rope_of(section, defaults), query_growth=growth)
