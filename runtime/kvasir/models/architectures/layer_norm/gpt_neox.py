"""GPT-NeoX (Black et al., 2022), Pythia (Biderman et al., 2023), Dolly: LayerNorm, parallel layers."""

from types import MappingProxyType
from typing import Final

from kvasir.layers.mlp import MLP
from kvasir.layers.norm import LayerNorm
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, Order, read_decoder, read_heads
from kvasir.models.rope_config import read_rope

GROUPED_NAMES: Final = MappingProxyType(
    {
        "query_key_value": "qkv_proj",
        "dense": "o_proj",
        "dense_h_to_4h": "fc1",
        "dense_4h_to_h": "fc2",
    }
)
_NAMES: Final = MappingProxyType(
    {
        **GROUPED_NAMES,
        "attention": "self_attn",
        "embed_in": "embed_tokens",
        "embed_out": "lm_head",
        "final_layer_norm": "norm",
    }
)


def read_config(reader: ConfigReader) -> DecoderConfig:
    heads = read_heads(reader)
    theta, partial = reader.number("rotary_emb_base", 10000.0), reader.number("rotary_pct", 0.25)
    parallel = reader.flag("use_parallel_residual", True)
    reader.ignore("classifier_dropout", "is_decoder")
    return read_decoder(
        reader,
        heads,
        LayerConfig(read_rope(reader, heads, theta=theta, partial=partial)),
        activation="gelu",
        eps=1e-5,
        eps_key="layer_norm_eps",
        attention_bias=reader.flag("attention_bias", True),
        order=Order.PARALLEL_TWO_NORMS if parallel else Order.BEFORE,
        norm=LayerNorm,
        mlp=MLP,
        grouped_qkv=True,
        mlp_bias=True,
        names=_NAMES,
    )
