"""Hunyuan 0.5B to 7B (Tencent, 2025): Llama with norms of rotated queries and keys."""

from types import MappingProxyType
from typing import Final

from kvasir.layers.attention import HeadShape
from kvasir.layers.norm import RMSNorm
from kvasir.layers.qk_norm import norm_of_each_head
from kvasir.layers.rotary import Rope
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import RopeDefaults, rope_of

_NAMES: Final = MappingProxyType({"query_layernorm": "q_norm", "key_layernorm": "k_norm"})


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    for key, value in (("use_qk_norm", True), ("norm_type", "rms"), ("use_cla", False)):
        reader.require(key, value)
    reader.ignore("cla_share_factor", "eod_token_id")  # the factor is of use_cla
    return read_decoder(
        reader,
        heads,
        LayerConfig(read_alpha_rope(reader, heads)),
        eps=1e-5,
        attention_bias=reader.flag("attention_bias", False),
        qk_norm=norm_of_each_head(RMSNorm),
        rotates_first=True,
        names=_NAMES,
    )


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
