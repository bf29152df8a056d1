"""GLM-4 (2024) and GLM-4-0414 (2025) of Zhipu AI, the dense models: half of each head is rotated, as in GPT-J."""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, Order, read_decoder, read_heads
from kvasir.models.rope_config import read_rope

_NAMES: Final = MappingProxyType(
    {"post_self_attn_layernorm": "attention_output_norm", "post_mlp_layernorm": "mlp_output_norm"}
)


def read_glm(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader, head_dim=128)
    layer = LayerConfig(read_rope(reader, heads, partial=0.5, interleaved=True))
    return read_decoder(reader, heads, layer, eps=1.5625e-7, qkv_bias=reader.flag("attention_bias", True))


def read_glm4(reader: ConfigReader) -> DecoderConfig:
    return replace(read_glm(reader), order=Order.AROUND, names=_NAMES)
