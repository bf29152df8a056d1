"""GPT-NeoX (Black et al., 2022), Pythia (Biderman et al., 2023), Dolly: LayerNorm, parallel layers."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.mlp import MLP
from kvasir.layers.norm import LayerNorm
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, Order, read_decoder, read_heads
from kvasir.models.rope_config import RopeDefaults, read_rope

GROUPED_NAMES: Final = MappingProxyType(
    {
        "query_key_value": "qkv_proj",
        "dense": "o_proj",
        "dense_h_to_4h": "fc1",
        "dense_4h_to_h": "fc2",
    }
)
_NAMES: Final = MappingProxyType(
    {
        **GROUPED_NAMES,
        "attention": "self_attn",
        "embed_in": "embed_tokens",
        "embed_out": "lm_head",
        "final_layer_norm": "norm",
    }
)


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    defaults = RopeDefaults(
        heads.head_dim,
        reader.integer("max_position_embeddings"),
        theta=reader.number("rotary_emb_base", 10000.0),
        partial=reader.number("rotary_pct", 0.25),
    )
    layers = [LayerConfig(read_rope(reader, defaults))] * reader.integer("num_hidden_layers")
    activation = reader.choice("hidden_act", "gelu", ACTIVATIONS)
    bias = reader.flag("attention_bias", True)
    neox = replace(
        read_decoder(reader, heads, layers, activation=activation),
        eps=reader.number("layer_norm_eps", 1e-5),
        order=Order.PARALLEL_TWO_NORMS if reader.flag("use_parallel_residual", True) else Order.BEFORE,
        norm=LayerNorm,
        mlp=MLP,
        grouped_qkv=True,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=True,
        names=_NAMES,
    )
    reader.finish(NO_EFFECT | {"classifier_dropout", "is_decoder"})
    return neox
