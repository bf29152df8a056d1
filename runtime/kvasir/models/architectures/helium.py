"""Helium 1 (Kyutai, 2025): Llama with GPT-J's rotation."""

from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_rope


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader, head_dim=128)
    return read_decoder(
        reader,
        heads,
        LayerConfig(read_rope(reader, heads, theta=1e5, interleaved=True)),
        eps=1e-8,
        qkv_bias=reader.flag("attention_bias", False),
        mlp_bias=reader.flag("mlp_bias", False),
    )
