"""Hunyuan 0.5B to 7B (Tencent, 2025): Llama with norms of rotated queries and keys."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from kvasir.layers.attention import HeadShape
from kvasir.layers.norm import RMSNorm
from kvasir.layers.qk_norm import norm_of_each_head
from kvasir.layers.rotary import Rope
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import RopeDefaults, rope_of

_NAMES: Final = MappingProxyType({"query_layernorm": "q_norm", "key_layernorm": "k_norm"})


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    layers = [LayerConfig(read_alpha_rope(reader, heads))] * reader.integer("num_hidden_layers")
    bias = reader.flag("attention_bias", False)
    hunyuan = replace(
        read_decoder(reader, heads, layers, eps=1e-5),
        qk_norm=norm_of_each_head(RMSNorm),
        rotates_first=True,
        qkv_bias=bias,
        output_bias=bias,
        names=_NAMES,
    )
    for key, value in (("use_qk_norm", True), ("norm_type", "rms"), ("use_cla", False)):
        reader.require(key, value)
    reader.finish(NO_EFFECT | {"cla_share_factor", "eod_token_id"})  # the factor is of use_cla
    return hunyuan


def read_alpha_rope(reader: ConfigReader, heads: HeadShape) -> Rope:
    """Read a rotation whose base grows by `alpha`, under the name of dynamic NTK."""
    section = reader.rope(by_layer=False)
    defaults = RopeDefaults(heads.head_dim, reader.integer("max_position_embeddings"))
    if not section.is_set("alpha"):
        return rope_of(section, defaults)
    section.require("rope_type", "dynamic")
    theta, alpha = section.number("rope_theta", defaults.theta), section.number("alpha")
    section.require("attn_factor", 1)
    section.finish(frozenset(("factor",)))  # without effect next to alpha
    return Rope(heads.head_dim, theta * alpha ** (heads.head_dim / (heads.head_dim - 2)), None)
