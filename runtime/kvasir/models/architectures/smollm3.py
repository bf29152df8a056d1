"""SmolLM3 (Hugging Face, 2025): Llama with layers that do not see positions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads, read_windows
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.rope_config import RopeDefaults, read_rope


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads, count = read_heads(reader), reader.integer("num_hidden_layers")
    rope = read_rope(reader, RopeDefaults(heads.head_dim, reader.integer("max_position_embeddings"), theta=2e6))
    every = reader.integer("no_rope_layer_interval", 4)
    rotates = reader.integers("no_rope_layers") or tuple((index + 1) % every for index in range(count))
    if len(rotates) != count:
        raise ModelLoadError(f"config.json has {len(rotates)} entries of no_rope_layers for {count} layers")
    window = reader.optional(reader.integer, "sliding_window", None)
    if not reader.flag("use_sliding_window", False):
        window = None
    windows = read_windows(reader, window, lambda index: window is not None and not rotates[index])
    layers = [LayerConfig(rope if rotates[index] else None, windows[index]) for index in range(count)]
    bias = reader.flag("attention_bias", False)
    smollm = replace(
        read_decoder(reader, heads, layers, tied=True),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=reader.flag("mlp_bias", False),
    )
    reader.finish(NO_EFFECT)
    return smollm
