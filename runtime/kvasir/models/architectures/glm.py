"""GLM-4 (2024) and GLM-4-0414 (2025) of Zhipu AI, the dense models: half of each head is rotated, as in GPT-J."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, Order, read_decoder, read_heads
from kvasir.models.rope_config import RopeDefaults, read_rope

_NAMES: Final = MappingProxyType(
    {"post_self_attn_layernorm": "attention_output_norm", "post_mlp_layernorm": "mlp_output_norm"}
)


def read_glm(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader, head_dim=128)
    defaults = RopeDefaults(heads.head_dim, reader.integer("max_position_embeddings"), partial=0.5)
    rope = replace(read_rope(reader, defaults), interleaved=True)
    layers = [LayerConfig(rope)] * reader.integer("num_hidden_layers")
    glm = replace(read_decoder(reader, heads, layers, eps=1.5625e-7), qkv_bias=reader.flag("attention_bias", True))
    reader.finish(NO_EFFECT)
    return glm


def read_glm4(config: Mapping[str, Any]) -> DecoderConfig:
    return replace(read_glm(config), order=Order.AROUND, names=_NAMES)
