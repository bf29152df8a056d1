"""OPT (Zhang et al., 2022): LayerNorm, learned positions, multi-head attention, ReLU."""

from types import MappingProxyType
from typing import Final

from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.mlp import MLP
from kvasir.layers.norm import LayerNorm
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads

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


def read_config(reader: ConfigReader) -> DecoderConfig:
    required = {
        "do_layer_norm_before": True,
        "layer_norm_elementwise_affine": True,
        "word_embed_proj_dim": reader.integer("hidden_size"),
        "_remove_final_layer_norm": False,
    }
    for key, value in required.items():
        reader.require(key, value, elsewhere=True)
    reader.ignore("activation_dropout", "dropout", "init_std", "layerdrop")
    bias = reader.flag("enable_bias", True)
    return read_decoder(
        reader,
        read_heads(reader),
        LayerConfig(None),
        intermediate_size=reader.integer("ffn_dim"),
        activation=reader.choice("activation_function", "relu", ACTIVATIONS),
        eps=1e-5,
        eps_key=None,
        tied=True,
        attention_bias=bias,
        positions=reader.integer("max_position_embeddings"),
        first_position=_FIRST_POSITION,
        norm=LayerNorm,
        mlp=MLP,
        mlp_bias=bias,
        names=_NAMES,
        keys={"intermediate_size": "ffn_dim"},
    )
