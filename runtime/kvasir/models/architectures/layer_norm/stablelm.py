"""StableLM (Stability AI, 2023) and StableLM 2 (2024): Llama with LayerNorm and a partial rotation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvasir.layers.norm import LayerNorm
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, Order, read_decoder, read_heads
from kvasir.models.rope_config import RopeDefaults, read_rope


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    defaults = RopeDefaults(heads.head_dim, reader.integer("max_position_embeddings"), partial=0.25)
    layers = [LayerConfig(read_rope(reader, defaults))] * reader.integer("num_hidden_layers")
    reader.require("qk_layernorm", False, elsewhere=True)
    stablelm = replace(
        read_decoder(reader, heads, layers),
        eps=reader.number("layer_norm_eps", 1e-5),
        order=Order.PARALLEL if reader.flag("use_parallel_residual", False) else Order.BEFORE,
        norm=LayerNorm,
        qkv_bias=reader.flag("use_qkv_bias", False),
    )
    reader.finish(NO_EFFECT)
    return stablelm
