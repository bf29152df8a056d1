"""StarCoder 2 (Lozhkov et al., 2024): LayerNorm, biases, a plain feed-forward layer, and a window in all layers."""

from types import MappingProxyType
from typing import Final

from kvasir.layers.mlp import MLP
from kvasir.layers.norm import LayerNorm
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_rope

_NAMES: Final = MappingProxyType({"mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"})


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    window = reader.optional(reader.integer, "sliding_window", None)
    bias = reader.flag("use_bias", True)
    reader.require("norm_type", "layer_norm")
    reader.require("mlp_type", "default")
    reader.ignore("embedding_dropout", "residual_dropout")
    return read_decoder(
        reader,
        heads,
        LayerConfig(read_rope(reader, heads), window),
        activation="gelu_pytorch_tanh",
        eps=1e-5,
        eps_key="norm_epsilon",
        tied=True,
        attention_bias=bias,
        norm=LayerNorm,
        mlp=MLP,
        mlp_bias=bias,
        names=_NAMES,
    )
