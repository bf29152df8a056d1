"""OLMo 2 (2025) and OLMo 3 (2025), of Ai2: Llama with norms of outputs, queries and keys, and none of inputs."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from kvasir.hub.rope_parameters import FULL, SLIDING
from kvasir.layers.attention import HeadShape
from kvasir.layers.qk_norm import ProjectionRMSNorm
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, Order, read_decoder, read_heads, read_windows
from kvasir.models.rope_config import RopeDefaults, read_rope, read_ropes

OUTPUT_NORMS: Final = MappingProxyType(
    {"post_attention_layernorm": "attention_output_norm", "post_feedforward_layernorm": "mlp_output_norm"}
)


def read_olmo2(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    return _olmo(reader, heads, LayerConfig(read_rope(reader, heads)))


def read_olmo3(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    defaults = RopeDefaults(heads.head_dim, reader.integer("max_position_embeddings"), theta=5e5)
    ropes = read_ropes(reader, {FULL: defaults, SLIDING: defaults})
    window = reader.optional(reader.integer, "sliding_window", 4096)
    windows = read_windows(reader, window, lambda index: (index + 1) % 4 != 0)
    return _olmo(reader, heads, [LayerConfig(ropes[FULL if each is None else SLIDING], each) for each in windows])


def _olmo(reader: ConfigReader, heads: HeadShape, layers: LayerConfig | Sequence[LayerConfig]) -> DecoderConfig:
    return read_decoder(
        reader,
        heads,
        layers,
        eps=1e-5,
        attention_bias=reader.flag("attention_bias", False),
        order=Order.AFTER,
        qk_norm=ProjectionRMSNorm,
        names=OUTPUT_NORMS,
    )
