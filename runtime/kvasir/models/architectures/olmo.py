"""OLMo 2 (2025) and OLMo 3 (2025), of Ai2: Llama with norms of outputs, queries and keys, and none of inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from kvasir.hub.rope_parameters import FULL, SLIDING
from kvasir.layers.attention import HeadShape
from kvasir.layers.qk_norm import ProjectionRMSNorm
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import (
    DecoderConfig,
    LayerConfig,
    Order,
    read_decoder,
    read_heads,
    read_windows,
)
from kvasir.models.rope_config import RopeDefaults, read_whole_rope, rope_of

OUTPUT_NORMS: Final = MappingProxyType(
    {"post_attention_layernorm": "attention_output_norm", "post_feedforward_layernorm": "mlp_output_norm"}
)


def read_olmo2(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    rope = read_whole_rope(reader, heads.head_dim)
    return _olmo(reader, heads, [LayerConfig(rope)] * reader.integer("num_hidden_layers"))


def read_olmo3(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    sections = reader.rope(by_layer=True)
    defaults = RopeDefaults(heads.head_dim, reader.integer("max_position_embeddings"), theta=5e5)
    everywhere, within_window = (rope_of(sections.part(kind), defaults) for kind in (FULL, SLIDING))
    sections.finish()
    window = reader.optional(reader.integer, "sliding_window", 4096)
    windows = read_windows(reader, window, lambda index: (index + 1) % 4 != 0)
    layers = [LayerConfig(everywhere if entry is None else within_window, entry) for entry in windows]
    return _olmo(reader, heads, layers)


def _olmo(reader: ConfigReader, heads: HeadShape, layers: Sequence[LayerConfig]) -> DecoderConfig:
    bias = reader.flag("attention_bias", False)
    olmo = replace(
        read_decoder(reader, heads, layers, eps=1e-5),
        order=Order.AFTER,
        qk_norm=ProjectionRMSNorm,
        qkv_bias=bias,
        output_bias=bias,
        names=OUTPUT_NORMS,
    )
    reader.finish(NO_EFFECT)
    return olmo
