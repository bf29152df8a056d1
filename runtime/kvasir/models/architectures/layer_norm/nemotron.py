"""Nemotron 3 and 4, and Minitron (NVIDIA, 2024): LayerNorm, squared ReLU, and a partial rotation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.mlp import MLP
from kvasir.layers.norm import OffsetLayerNorm
from kvasir.models.architectures.arcee import WITHOUT_GATE
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import RopeDefaults, read_rope


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    defaults = RopeDefaults(heads.head_dim, reader.integer("max_position_embeddings"), partial=0.5)
    layers = [LayerConfig(read_rope(reader, defaults))] * reader.integer("num_hidden_layers")
    activation = reader.choice("hidden_act", "relu2", ACTIVATIONS)
    bias = reader.flag("attention_bias", False)
    nemotron = replace(
        read_decoder(reader, heads, layers, activation=activation),
        eps=reader.number("norm_eps", 1e-5),
        norm=OffsetLayerNorm,
        mlp=MLP,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=reader.flag("mlp_bias", False),
        names=WITHOUT_GATE,
    )
    reader.require("rope_percent", 0.5)  # repeated in some files
    reader.finish(NO_EFFECT)
    return nemotron
