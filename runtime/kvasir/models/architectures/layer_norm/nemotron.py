"""Nemotron 3 and 4, and Minitron (NVIDIA, 2024): LayerNorm, squared ReLU, and a partial rotation."""

from kvasir.layers.mlp import MLP
from kvasir.layers.norm import OffsetLayerNorm
from kvasir.models.architectures.arcee import WITHOUT_GATE
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_rope


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    reader.require("rope_percent", 0.5)  # repeated in some files
    return read_decoder(
        reader,
        heads,
        LayerConfig(read_rope(reader, heads, partial=0.5)),
        activation="relu2",
        eps=1e-5,
        eps_key="norm_eps",
        attention_bias=reader.flag("attention_bias", False),
        norm=OffsetLayerNorm,
        mlp=MLP,
        mlp_bias=reader.flag("mlp_bias", False),
        names=WITHOUT_GATE,
    )
