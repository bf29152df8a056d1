"""Arcee's AFM (2025): Llama with a feed-forward layer of squared ReLU and no gate."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.mlp import MLP
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_whole_rope

WITHOUT_GATE: Final = MappingProxyType({"mlp.up_proj": "mlp.fc1", "mlp.down_proj": "mlp.fc2"})


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    rope = read_whole_rope(reader, heads.head_dim)
    layers = [LayerConfig(rope)] * reader.integer("num_hidden_layers")
    activation = reader.choice("hidden_act", "relu2", ACTIVATIONS)
    bias = reader.flag("attention_bias", False)
    arcee = replace(
        read_decoder(reader, heads, layers, activation=activation, eps=1e-5),
        mlp=MLP,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=reader.flag("mlp_bias", False),
        names=WITHOUT_GATE,
    )
    reader.finish(NO_EFFECT)
    return arcee
