"""Falcon (Almazrouei et al., 2023) and Falcon 2 11B: parallel layers, LayerNorm, one or few K/V heads."""

from types import MappingProxyType
from typing import Final

from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.attention import HeadShape
from kvasir.layers.mlp import MLP
from kvasir.layers.norm import LayerNorm
from kvasir.models.architectures.layer_norm.gpt_neox import GROUPED_NAMES
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, Order, read_decoder
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.rope_config import read_rope

_NAMES: Final = MappingProxyType(
    {
        **GROUPED_NAMES,
        "h": "layers",
        "ln_attn": "input_layernorm",
        "ln_f": "norm",
        "ln_mlp": "post_attention_layernorm",
        "self_attention": "self_attn",
        "word_embeddings": "embed_tokens",
    }
)

_KEYS: Final = MappingProxyType({"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"})


def read_config(reader: ConfigReader) -> DecoderConfig:
    hidden_size, new = reader.integer("hidden_size"), reader.flag("new_decoder_architecture", False)
    heads = _heads(reader, hidden_size, new)
    reader.require("alibi", False, elsewhere=True)
    bias = reader.flag("bias", False)
    return read_decoder(
        reader,
        heads,
        LayerConfig(read_rope(reader, heads, longest=2048)),
        intermediate_size=reader.integer("ffn_hidden_size", 4 * hidden_size),
        activation=reader.choice("activation", "gelu", ACTIVATIONS),
        eps=1e-5,
        eps_key="layer_norm_epsilon",
        tied=True,
        attention_bias=bias,
        order=_order(reader, new),
        norm=LayerNorm,
        mlp=MLP,
        grouped_qkv=True,
        mlp_bias=bias,
        names=_NAMES,
        keys=_KEYS,
    )


def _heads(reader: ConfigReader, hidden_size: int, new: bool) -> HeadShape:
    heads = reader.integer("num_attention_heads")
    kv_heads = reader.integer("num_kv_heads", heads)
    if reader.flag("multi_query", True) and not new:
        kv_heads = 1  # num_kv_heads has no effect
    if heads % kv_heads or hidden_size % heads:
        raise ModelLoadError(
            f"config.json sets num_attention_heads to {heads}, which must divide hidden_size = {hidden_size} "
            f"and be a multiple of num_kv_heads = {kv_heads}"
        )
    return HeadShape(heads, kv_heads, hidden_size // heads)


def _order(reader: ConfigReader, new: bool) -> Order:
    norms = reader.integer("num_ln_in_parallel_attn", 2 if new else 1)
    if not reader.flag("parallel_attn", True):
        reader.require("new_decoder_architecture", False)
        return Order.BEFORE
    return Order.PARALLEL_TWO_NORMS if norms == 2 and new else Order.PARALLEL
