"""StableLM (Stability AI, 2023) and StableLM 2 (2024): Llama with LayerNorm and a partial rotation."""

from kvasir.layers.norm import LayerNorm
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, Order, read_decoder, read_heads
from kvasir.models.rope_config import read_rope


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    reader.require("qk_layernorm", False, elsewhere=True)
    return read_decoder(
        reader,
        heads,
        LayerConfig(read_rope(reader, heads, partial=0.25)),
        eps=1e-5,
        eps_key="layer_norm_eps",
        order=Order.PARALLEL if reader.flag("use_parallel_residual", False) else Order.BEFORE,
        norm=LayerNorm,
        qkv_bias=reader.flag("use_qkv_bias", False),
    )
