"""OPT (Zhang et al., 2022): LayerNorm, learned positions, multi-head attention, ReLU."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.mlp import MLP
from kvasir.layers.norm import LayerNorm
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, check_layer_types, read_heads

_FIRST_POSITION: Final = 2
_NAMES: Final = MappingProxyType(
    {
        "decoder.embed_positions": "embed_positions",
        "decoder.embed_tokens": "embed_tokens",
        "decoder.final_layer_norm": "norm",
        "decoder.layers": "layers",
        "fc1": "mlp.fc1",
        "fc2": "mlp.fc2",
        "final_layer_norm": "post_attention_layernorm",
        "out_proj": "o_proj",
        "self_attn_layer_norm": "input_layernorm",
    }
)
_KEYS: Final = MappingProxyType({"intermediate_size": "ffn_dim"})
_NOTES: Final = frozenset(("activation_dropout", "dropout", "init_std", "layerdrop"))


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads, hidden_size = read_heads(reader), reader.integer("hidden_size")
    layers = (LayerConfig(None),) * reader.integer("num_hidden_layers")
    check_layer_types(reader, [None] * len(layers))
    for key, value in (
        ("do_layer_norm_before", True),
        ("layer_norm_elementwise_affine", True),
        ("word_embed_proj_dim", hidden_size),
        ("_remove_final_layer_norm", False),
    ):
        reader.require(key, value, elsewhere=True)
    bias = reader.flag("enable_bias", True)
    opt = DecoderConfig(
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=reader.integer("ffn_dim"),
        heads=heads,
        layers=layers,
        activation=reader.choice("activation_function", "relu", ACTIVATIONS),
        eps=1e-5,
        tied=reader.flag("tie_word_embeddings", True),
        scale=heads.head_dim**-0.5,
        positions=reader.integer("max_position_embeddings"),
        first_position=_FIRST_POSITION,
        norm=LayerNorm,
        mlp=MLP,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        names=_NAMES,
        keys=_KEYS,
    )
    reader.finish(NO_EFFECT | _NOTES)
    return opt
