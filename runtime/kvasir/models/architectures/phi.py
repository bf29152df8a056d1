"""Phi-1, Phi-1.5 and Phi-2 (Gunasekar et al., 2023): LayerNorm, partial rotation, parallel attention and MLP."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from torch import Tensor, nn

from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.attention import AttentionPlan, KVCache
from kvasir.layers.mlp import MLP
from kvasir.layers.norm import LayerNorm
from kvasir.layers.parameter import Placement
from kvasir.layers.rotary import Rotation
from kvasir.models.config_reader import NO_EFFECT, ConfigReader
from kvasir.models.decoder import Attention, Decoder
from kvasir.models.decoder_config import DecoderConfig, LayerConfig, read_decoder, read_heads
from kvasir.models.rope_config import RopeDefaults, read_rope

_NAMES: Final = MappingProxyType(
    {
        "dense": "o_proj",
        "final_layernorm": "norm",
        "q_layernorm": "q_norm",
        "k_layernorm": "k_norm",
    }
)


def build(config: Mapping[str, Any], placement: Placement, context: int) -> Decoder:
    return Decoder(read_config(config), placement, context, layer=ParallelLayer, names=_NAMES)


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    reader = ConfigReader(config)
    heads = read_heads(reader)
    defaults = RopeDefaults(heads.head_dim, reader.integer("max_position_embeddings"), partial=0.5)
    layers = [LayerConfig(read_rope(reader, defaults))] * reader.integer("num_hidden_layers")
    activation = reader.choice("hidden_act", "gelu_new", ACTIVATIONS)
    phi = replace(
        read_decoder(reader, heads, layers, activation=activation),
        eps=reader.number("layer_norm_eps", 1e-5),
        norm=LayerNorm,
        qk_norm=reader.flag("qk_layernorm", False),
        qkv_bias=True,
        output_bias=True,
        head_bias=True,
    )
    reader.finish(NO_EFFECT)
    return phi


class ParallelLayer(nn.Module):
    def __init__(self, config: DecoderConfig, layer: LayerConfig, placement: Placement) -> None:
        super().__init__()
        self.input_layernorm = config.norm(config.hidden_size, config.eps, placement)
        self.self_attn = Attention(config, layer, placement.at("self_attn"))
        self.mlp = MLP(config.hidden_size, config.intermediate_size, config.activation, placement.at("mlp"))

    def forward(
        self, x: Tensor, added: Tensor | None, rotation: Rotation, cache: KVCache, plan: AttentionPlan
    ) -> Tensor:
        normalised = self.input_layernorm(x, added)
        x.add_(self.self_attn(normalised, rotation, cache, plan))
        return self.mlp(normalised)  # type: ignore[no-any-return]
