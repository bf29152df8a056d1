"""SmolLM3 (Hugging Face, 2025): Llama with layers that do not see positions."""

from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads, read_windows
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.rope_config import read_rope


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads, count = read_heads(reader), reader.integer("num_hidden_layers")
    rope = read_rope(reader, heads, theta=2e6)
    every = reader.integer("no_rope_layer_interval", 4)
    rotates = reader.integers("no_rope_layers") or tuple((index + 1) % every for index in range(count))
    if len(rotates) != count:
        raise ModelLoadError(f"config.json has {len(rotates)} entries of no_rope_layers for {count} layers")
    window = reader.optional(reader.integer, "sliding_window", None)
    if not reader.flag("use_sliding_window", False):
        window = None
    windows = read_windows(reader, window, lambda index: window is not None and not rotates[index])
    return read_decoder(
        reader,
        heads,
        [LayerConfig(rope if rotates[index] else None, windows[index]) for index in range(count)],
        tied=True,
        attention_bias=reader.flag("attention_bias", False),
        mlp_bias=reader.flag("mlp_bias", False),
    )
