"""Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini (Abdin et al., 2024): Llama with partial rotation and LongRoPE."""

from collections.abc import Mapping
from typing import Any, Final

from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import RopeDefaults, read_rope

# LongRoPE under its present and its first name.
_ROPE_TYPES: Final = frozenset(("default", "longrope", "su"))


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    defaults = RopeDefaults(
        heads.head_dim,
        reader.integer("max_position_embeddings"),
        partial=1.0,
        original_max_position_embeddings=reader.integer("original_max_position_embeddings", 4096),
        types=_ROPE_TYPES,
    )
    rope = read_rope(reader, defaults)
    window = reader.optional(reader.integer, "sliding_window", None)
    layers = [LayerConfig(rope, window)] * reader.integer("num_hidden_layers")
    phi = read_decoder(reader, heads, layers, eps=1e-5)
    for key in ("full_attn_mod", "interpolate_factor"):  # written by Phi-4-mini, without effect at this value
        reader.require(key, 1)
    reader.finish(NO_EFFECT)
    return phi
