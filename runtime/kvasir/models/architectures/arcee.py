"""Arcee's AFM (2025): Llama with a feed-forward layer of squared ReLU and no gate."""

from types import MappingProxyType
from typing import Final

from kvasir.layers.mlp import MLP
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_rope

WITHOUT_GATE: Final = MappingProxyType({"mlp.up_proj": "mlp.fc1", "mlp.down_proj": "mlp.fc2"})


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    return read_decoder(
        reader,
        heads,
        LayerConfig(read_rope(reader, heads)),
        activation="relu2",
        eps=1e-5,
        attention_bias=reader.flag("attention_bias", False),
        mlp=MLP,
        mlp_bias=reader.flag("mlp_bias", False),
        names=WITHOUT_GATE,
    )
