"""Phi-1, Phi-1.5 and Phi-2 (Gunasekar et al., 2023): LayerNorm, partial rotation, parallel attention and MLP."""

from types import MappingProxyType
from typing import Final

from kvasir.layers.mlp import MLP
from kvasir.layers.norm import LayerNorm
from kvasir.layers.qk_norm import norm_of_each_head
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, Order, read_decoder, read_heads
from kvasir.models.rope_config import read_rope

_NAMES: Final = MappingProxyType(
    {"dense": "o_proj", "final_layernorm": "norm", "q_layernorm": "q_norm", "k_layernorm": "k_norm"}
)


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    return read_decoder(
        reader,
        heads,
        LayerConfig(read_rope(reader, heads, partial=0.5)),
        activation="gelu_new",
        eps=1e-5,
        eps_key="layer_norm_eps",
        attention_bias=True,
        order=Order.PARALLEL,
        norm=LayerNorm,
        qk_norm=norm_of_each_head(LayerNorm) if reader.flag("qk_layernorm", False) else None,
        mlp=MLP,
        mlp_bias=True,
        head_bias=True,
        names=_NAMES,
    )
