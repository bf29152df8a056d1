"""Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini (Abdin et al., 2024): Llama with partial rotation and LongRoPE."""

from typing import Final

from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_rope

# LongRoPE under its present and its first name.
_ROPE_TYPES: Final = frozenset(("default", "longrope", "su"))


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    original = reader.integer("original_max_position_embeddings", 4096)
    rope = read_rope(reader, heads, partial=1.0, original_max_position_embeddings=original, types=_ROPE_TYPES)
    window = reader.optional(reader.integer, "sliding_window", None)
    for key in ("full_attn_mod", "interpolate_factor"):  # written by Phi-4-mini, without effect at this value
        reader.require(key, 1)
    return read_decoder(reader, heads, LayerConfig(rope, window), eps=1e-5)
