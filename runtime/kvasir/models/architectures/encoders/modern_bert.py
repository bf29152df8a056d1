"""ModernBERT (Warner et al., 2024): norms before each part, GeGLU, rotary positions, and windows in most layers."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from kvasir.hub.rope_parameters import FULL, SLIDING
from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.attention import HeadShape
from kvasir.layers.norm import LayerNorm, Norm, UnbiasedLayerNorm
from kvasir.layers.parameter import Placement
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import read_heads, read_windows
from kvasir.models.pooling.encoder import EncoderConfig, FeedForwardGate
from kvasir.models.pooling.encoder_family import EncoderFamily
from kvasir.models.pooling.score_head import ScoreHeadConfig
from kvasir.models.rope_config import RopeDefaults, read_ropes

_OF_HEADS: Final = frozenset((
    "classifier_pooling", "classifier_bias", "classifier_activation", "decoder_bias", "sparse_prediction",
    "sparse_pred_ignore_index",
))  # fmt: skip
_WITHOUT_EFFECT: Final = _OF_HEADS | {
    *("deterministic_flash_attn", "embedding_dropout", "mlp_dropout", "initializer_cutoff_factor"),
    # The files say "absolute", and 1e-5 twice.
    *("position_embedding_type", "layer_norm_eps", "reference_compile", "repad_logits_with_grad"),
}  # fmt: skip
_NAMES: Final = MappingProxyType({
    "embeddings.tok_embeddings": "embeddings.word",
    "embeddings.norm": "embeddings.norm",
    "layers.N.attn.Wqkv": "layers.N.attention.qkv",
    "layers.N.attn.Wo": "layers.N.attention.out",
    "layers.N.attn_norm": "layers.N.attention_norm",
    "layers.N.mlp.Wi": "layers.N.mlp.gate_up_proj",
    "layers.N.mlp.Wo": "layers.N.mlp.down_proj",
    "layers.N.mlp_norm": "layers.N.mlp_norm",
    "final_norm": "final_norm",
})  # fmt: skip


def read_config(reader: ConfigReader) -> EncoderConfig:
    heads = read_heads(reader)
    every = reader.integer("global_attn_every_n_layers", 3)
    windows = read_windows(reader, reader.integer("local_attention", 128), lambda index: index % every != 0)
    positions = reader.integer("max_position_embeddings", 8192)
    thetas = {
        FULL: reader.number("global_rope_theta", 160_000.0),
        SLIDING: reader.number("local_rope_theta", 10_000.0),
    }
    ropes = read_ropes(reader, {kind: RopeDefaults(heads.head_dim, positions, thetas[kind]) for kind in thetas})
    bias = reader.flag("mlp_bias", False)
    reader.ignore(*_WITHOUT_EFFECT)
    return EncoderConfig(
        vocab_size=reader.integer("vocab_size"),
        hidden_size=reader.integer("hidden_size"),
        intermediate_size=reader.integer("intermediate_size"),
        heads=HeadShape(heads.heads, heads.heads, heads.head_dim),
        num_layers=len(windows),
        activation=reader.choice("hidden_activation", "gelu", ACTIVATIONS),
        eps=reader.number("norm_eps", 1e-5),
        rope=ropes[FULL],
        local_rope=ropes[SLIDING],
        windows=windows,
        norm=_norm(reader),
        norms_before=True,
        gate=FeedForwardGate(bias, bias),
        attention_bias=reader.flag("attention_bias", False),
        names=_NAMES,
        prefixes=("model.",),
    )


def _norm(reader: ConfigReader) -> type[LayerNorm]:
    return LayerNorm if reader.flag("norm_bias", False) else UnbiasedLayerNorm


def _head(config: Mapping[str, Any], labels: int) -> ScoreHeadConfig:
    reader = ConfigReader(config)
    return ScoreHeadConfig(
        reader.choice("classifier_pooling", "cls", {"cls": "cls", "mean": "mean"}),
        labels,
        reader.choice("classifier_activation", "gelu", ACTIVATIONS),
        dense_bias=reader.flag("classifier_bias", False),
        norm=partial(_normed, _norm(reader), reader.number("norm_eps", 1e-5)),
    )


def _normed(kind: type[LayerNorm], eps: float, size: int, placement: Placement) -> Norm:
    return kind(size, eps, placement)


MODERN_BERT: Final = EncoderFamily(
    read_config,
    head=_head,
    head_names=MappingProxyType({"head.dense": "dense", "head.norm": "norm", "classifier": "out"}),
    unused=("decoder.", "head."),
)
