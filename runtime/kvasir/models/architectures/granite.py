"""Granite 3 and 4 (IBM, 2024, 2025), dense, and HyperCLOVA X SEED Think (Naver, 2025): Llama with multipliers."""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, Order, read_decoder, read_heads
from kvasir.models.rope_config import read_rope

_NAMES_OF_HYPERCLOVAX: Final = MappingProxyType(
    {"post_norm1": "attention_output_norm", "post_norm2": "mlp_output_norm"}
)


def read_config(reader: ConfigReader) -> DecoderConfig:
    return replace(
        _granite(reader, scale=1.0),
        residual_scale=reader.number("residual_multiplier", 1.0),
        logit_scale=1 / reader.number("logits_scaling", 1.0),
    )


def read_hyperclovax(reader: ConfigReader) -> DecoderConfig:
    hyperclovax = replace(_granite(reader), logit_scale=reader.number("logits_scaling", 1.0))
    reader.require("residual_multiplier", 1.0, elsewhere=True)
    outputs = reader.flag("use_post_norm", True)
    return replace(hyperclovax, order=Order.AROUND, names=_NAMES_OF_HYPERCLOVAX) if outputs else hyperclovax


def _granite(reader: ConfigReader, scale: float | None = None) -> DecoderConfig:
    # `scale` is a default. None: head_dim ** -0.5.
    heads = read_heads(reader)
    return read_decoder(
        reader,
        heads,
        LayerConfig(read_rope(reader, heads)),
        attention_bias=reader.flag("attention_bias", False),
        scale=reader.number("attention_multiplier", scale or heads.head_dim**-0.5),
        embedding_scale=reader.number("embedding_multiplier", 1.0),
        mlp_bias=reader.flag("mlp_bias", False),
    )
