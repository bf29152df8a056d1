"""Phi-1, Phi-1.5 and Phi-2 (Gunasekar et al., 2023): LayerNorm, partial rotation, parallel attention and MLP."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.mlp import MLP
from kvasir.layers.norm import LayerNorm
from kvasir.layers.qk_norm import norm_of_each_head
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, Order, read_decoder, read_heads
from kvasir.models.rope_config import RopeDefaults, read_rope

_NAMES: Final = MappingProxyType(
    {
        "dense": "o_proj",
        "final_layernorm": "norm",
        "q_layernorm": "q_norm",
        "k_layernorm": "k_norm",
    }
)


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    defaults = RopeDefaults(heads.head_dim, reader.integer("max_position_embeddings"), partial=0.5)
    layers = [LayerConfig(read_rope(reader, defaults))] * reader.integer("num_hidden_layers")
    activation = reader.choice("hidden_act", "gelu_new", ACTIVATIONS)
    phi = replace(
        read_decoder(reader, heads, layers, activation=activation),
        eps=reader.number("layer_norm_eps", 1e-5),
        order=Order.PARALLEL,
        norm=LayerNorm,
        qk_norm=norm_of_each_head(LayerNorm) if reader.flag("qk_layernorm", False) else None,
        mlp=MLP,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        head_bias=True,
        names=_NAMES,
    )
    reader.finish(NO_EFFECT)
    return phi
