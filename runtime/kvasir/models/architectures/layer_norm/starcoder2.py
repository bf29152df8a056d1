"""StarCoder 2 (Lozhkov et al., 2024): LayerNorm, biases, a plain feed-forward layer, and a window in all layers."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.mlp import MLP
from kvasir.layers.norm import LayerNorm
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_whole_rope

_NAMES: Final = MappingProxyType({"mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"})


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    rope = read_whole_rope(reader, heads.head_dim)
    window = reader.optional(reader.integer, "sliding_window", None)
    layers = [LayerConfig(rope, window)] * reader.integer("num_hidden_layers")
    activation = reader.choice("hidden_act", "gelu_pytorch_tanh", ACTIVATIONS)
    bias = reader.flag("use_bias", True)
    starcoder = replace(
        read_decoder(reader, heads, layers, activation=activation, tied=True),
        eps=reader.number("norm_epsilon", 1e-5),
        norm=LayerNorm,
        mlp=MLP,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        names=_NAMES,
    )
    reader.require("norm_type", "layer_norm")
    reader.require("mlp_type", "default")
    reader.finish(NO_EFFECT | {"embedding_dropout", "residual_dropout"})
    return starcoder
