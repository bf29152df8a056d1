"""GPT-2 (Radford et al., 2019): LayerNorm, learned positions, multi-head attention, GELU."""

from functools import partial
from types import MappingProxyType
from typing import Final

from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.attention import HeadShape
from kvasir.layers.mlp import MLP
from kvasir.layers.norm import LayerNorm
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder
from kvasir.models.model_load_error import ModelLoadError

_TRANSPOSED_MLP: Final = partial(MLP, transposed=True)
_NAMES: Final = MappingProxyType(
    {
        "attn.c_attn": "self_attn.qkv_proj",
        "attn.c_proj": "self_attn.o_proj",
        "h": "layers",
        "ln_1": "input_layernorm",
        "ln_2": "post_attention_layernorm",
        "ln_f": "norm",
        "mlp.c_fc": "mlp.fc1",
        "mlp.c_proj": "mlp.fc2",
        "wpe": "embed_positions",
        "wte": "embed_tokens",
    }
)

_KEYS: Final = MappingProxyType(
    {"num_attention_heads": "n_head", "intermediate_size": "n_inner", "num_hidden_layers": "n_layer"}
)


def read_config(reader: ConfigReader) -> DecoderConfig:
    hidden_size = _either(reader, "n_embd", "hidden_size", 768)
    heads = _either(reader, "n_head", "num_attention_heads", 12)
    if hidden_size % heads:
        raise ModelLoadError(f"config.json sets n_embd to {hidden_size}, which n_head = {heads} does not divide")
    head_dim = hidden_size // heads
    reader.require("add_cross_attention", False, elsewhere=True)
    # n_ctx repeats n_positions in old files; reorder_and_upcast_attn is for float16 training.
    reader.ignore("n_ctx", "reorder_and_upcast_attn")
    by_layer = reader.flag("scale_attn_by_inverse_layer_idx", False)
    count = _either(reader, "n_layer", "num_hidden_layers", 12)
    return read_decoder(
        reader,
        HeadShape(heads, heads, head_dim),
        [LayerConfig(None, scale=1 / (index + 1) if by_layer else 1.0) for index in range(count)],
        vocab_size=reader.integer("vocab_size", 50257),
        hidden_size=hidden_size,
        intermediate_size=reader.integer("n_inner", 4 * hidden_size),
        activation=reader.choice("activation_function", "gelu_new", ACTIVATIONS),
        eps=1e-5,
        eps_key="layer_norm_epsilon",
        tied=True,
        attention_bias=True,
        scale=head_dim**-0.5 if reader.flag("scale_attn_weights", True) else 1.0,
        positions=_either(reader, "n_positions", "max_position_embeddings", 1024),
        norm=LayerNorm,
        mlp=_TRANSPOSED_MLP,
        transposed=True,
        mlp_bias=True,
        names=_NAMES,
        keys=_KEYS,
    )


def _either(reader: ConfigReader, name: str, alias: str, default: int) -> int:
    value = reader.integer(name, reader.integer(alias, default))
    reader.require(alias, value)
    return value
