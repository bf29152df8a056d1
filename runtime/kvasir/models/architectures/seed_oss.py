"""Seed-OSS (ByteDance Seed, 2025): Llama with biases on q, k and v."""

from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_rope


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader, head_dim=128)
    reader.ignore("residual_dropout")
    return read_decoder(
        reader,
        heads,
        LayerConfig(read_rope(reader, heads)),
        qkv_bias=reader.flag("attention_bias", True),
        output_bias=reader.flag("attention_out_bias", False),
        mlp_bias=reader.flag("mlp_bias", False),
    )
