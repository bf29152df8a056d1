"""EXAONE 4 (LG AI Research, 2025): Llama with norms of outputs, queries and keys, and none of inputs.

In models with windows, layers without one do not see positions.
"""

from kvasir.layers.norm import RMSNorm
from kvasir.layers.qk_norm import norm_of_each_head
from kvasir.models.architectures.olmo import OUTPUT_NORMS
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, Order, read_decoder, read_heads, read_windows
from kvasir.models.rope_config import read_rope


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    rope = read_rope(reader, heads)
    window = reader.optional(reader.integer, "sliding_window", 4096)
    # With layer_types, files write the pattern as "LLLG".
    every = 4 if reader.is_set("layer_types") else reader.optional(reader.integer, "sliding_window_pattern", 4)
    reader.ignore("sliding_window_pattern")
    windows = read_windows(reader, window, lambda index: window is not None and (index + 1) % (every or 1) != 0)
    layers = [LayerConfig(rope if entry or window is None else None, entry) for entry in windows]
    norm = norm_of_each_head(RMSNorm)
    return read_decoder(reader, heads, layers, eps=1e-5, order=Order.AFTER, qk_norm=norm, names=OUTPUT_NORMS)
