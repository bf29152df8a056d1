"""Llama (Touvron et al., 2023), Llama 3 (Dubey et al., 2024), SmolLM: RMSNorm, rotary positions, GQA, SwiGLU."""

from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import read_rope


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    return read_decoder(
        reader,
        heads,
        LayerConfig(read_rope(reader, heads)),
        attention_bias=reader.flag("attention_bias", False),
        mlp_bias=reader.flag("mlp_bias", False),
    )
