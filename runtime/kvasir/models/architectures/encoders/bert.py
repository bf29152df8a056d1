"""BERT (Devlin et al., 2019), RoBERTa (Liu et al., 2019) and XLM-R (Conneau et al., 2020), DistilBERT (Sanh et al.,
2019), MPNet (Song et al., 2020) and Jina Embeddings 2 (Günther et al., 2023): one encoder with other names,
positions and token types.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import torch.nn.functional as F

from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.attention import HeadShape
from kvasir.models.config_reader import ConfigReader
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.pooling.encoder import EncoderConfig, FeedForwardGate
from kvasir.models.pooling.encoder_family import EncoderFamily
from kvasir.models.pooling.score_head import ScoreHeadConfig

_EMBEDDINGS: Final = {
    "embeddings.word_embeddings": "embeddings.word",
    "embeddings.position_embeddings": "embeddings.position",
    "embeddings.token_type_embeddings": "embeddings.token_type",
    "embeddings.LayerNorm": "embeddings.norm",
}
_MLP: Final = {
    "encoder.layer.N.intermediate.dense": "layers.N.mlp.fc1",
    "encoder.layer.N.output.dense": "layers.N.mlp.fc2",
    "encoder.layer.N.output.LayerNorm": "layers.N.mlp_norm",
}
_BERT: Final = {
    **_EMBEDDINGS,
    "encoder.layer.N.attention.self.query": "layers.N.attention.qkv#q",
    "encoder.layer.N.attention.self.key": "layers.N.attention.qkv#k",
    "encoder.layer.N.attention.self.value": "layers.N.attention.qkv#v",
    "encoder.layer.N.attention.output.dense": "layers.N.attention.out",
    "encoder.layer.N.attention.output.LayerNorm": "layers.N.attention_norm",
    **_MLP,
}
_DISTILBERT: Final = {
    **_EMBEDDINGS,
    "transformer.layer.N.attention.q_lin": "layers.N.attention.qkv#q",
    "transformer.layer.N.attention.k_lin": "layers.N.attention.qkv#k",
    "transformer.layer.N.attention.v_lin": "layers.N.attention.qkv#v",
    "transformer.layer.N.attention.out_lin": "layers.N.attention.out",
    "transformer.layer.N.sa_layer_norm": "layers.N.attention_norm",
    "transformer.layer.N.ffn.lin1": "layers.N.mlp.fc1",
    "transformer.layer.N.ffn.lin2": "layers.N.mlp.fc2",
    "transformer.layer.N.output_layer_norm": "layers.N.mlp_norm",
}
_MPNET: Final = {
    **_EMBEDDINGS,
    "encoder.relative_attention_bias": "relative",
    "encoder.layer.N.attention.attn.q": "layers.N.attention.qkv#q",
    "encoder.layer.N.attention.attn.k": "layers.N.attention.qkv#k",
    "encoder.layer.N.attention.attn.v": "layers.N.attention.qkv#v",
    "encoder.layer.N.attention.attn.o": "layers.N.attention.out",
    "encoder.layer.N.attention.LayerNorm": "layers.N.attention_norm",
    **_MLP,
}
_JINA: Final = {
    **{theirs: ours for theirs, ours in _BERT.items() if ours not in _MLP.values()},
    "encoder.layer.N.mlp.gated_layers": "layers.N.mlp.gate_up_proj",
    "encoder.layer.N.mlp.wo": "layers.N.mlp.down_proj",
    "encoder.layer.N.mlp.layernorm": "layers.N.mlp_norm",
}
_GLU: Final = MappingProxyType({"geglu": ACTIVATIONS["gelu"], "reglu": ACTIVATIONS["relu"]})
_POOLER: Final = MappingProxyType({"bert.pooler.dense": "dense", "classifier": "out"})
_TWO_LAYERS: Final = MappingProxyType({"classifier.dense": "dense", "classifier.out_proj": "out"})


def _read(
    reader: ConfigReader,
    names: Mapping[str, str],
    prefix: str,
    position_type: str = "absolute",
    **changes: Any,
) -> EncoderConfig:
    for key, value in (("position_embedding_type", position_type), ("is_decoder", False)):
        reader.require(key, value)
    size, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    if size % heads:
        raise ModelLoadError(f"config.json sets hidden_size to {size}, which {heads} heads do not divide")
    read = {
        "vocab_size": reader.integer("vocab_size"),
        "hidden_size": size,
        "intermediate_size": reader.integer("intermediate_size"),
        "heads": HeadShape(heads, heads, size // heads),
        "num_layers": reader.integer("num_hidden_layers"),
        "activation": reader.choice("hidden_act", "gelu", ACTIVATIONS),
        "eps": reader.number("layer_norm_eps", 1e-12),
        "positions": reader.integer("max_position_embeddings", 512),
        "names": names,
        "prefixes": (prefix,),
    }
    return EncoderConfig(**read | changes)


def _types(reader: ConfigReader) -> int:
    return reader.integer("type_vocab_size", 2, least=0)


def _after_padding(reader: ConfigReader) -> int:
    # RoBERTa counts positions from the padding's id + 1.
    return reader.integer("pad_token_id", 1, least=0) + 1


def read_bert(reader: ConfigReader) -> EncoderConfig:
    return _read(reader, _BERT, "bert.", token_types=_types(reader))


def read_roberta(reader: ConfigReader) -> EncoderConfig:
    return _read(reader, _BERT, "roberta.", token_types=_types(reader), first_position=_after_padding(reader))


def read_mpnet(reader: ConfigReader) -> EncoderConfig:
    return _read(
        reader,
        _MPNET,
        "mpnet.",
        first_position=_after_padding(reader),
        relative_buckets=reader.integer("relative_attention_num_buckets", 32),
    )


def read_jina(reader: ConfigReader) -> EncoderConfig:
    return _read(
        reader,
        _JINA,
        "bert.",
        "alibi",
        positions=0,
        alibi=True,
        token_types=_types(reader),
        activation=reader.choice("feed_forward_type", "original", _GLU),
        gate=FeedForwardGate(bias=False, output_bias=True),
    )


def read_distilbert(reader: ConfigReader) -> EncoderConfig:
    # The table of positions is in the checkpoint, also with sinusoidal_pos_embds.
    size, heads = reader.integer("dim"), reader.integer("n_heads")
    reader.ignore("attention_dropout")
    return EncoderConfig(
        vocab_size=reader.integer("vocab_size"),
        hidden_size=size,
        intermediate_size=reader.integer("hidden_dim"),
        heads=HeadShape(heads, heads, size // heads),
        num_layers=reader.integer("n_layers"),
        activation=reader.choice("activation", "gelu", ACTIVATIONS),
        eps=1e-12,
        positions=reader.integer("max_position_embeddings"),
        names=_DISTILBERT,
        prefixes=("distilbert.",),
    )


_UNUSED: Final = ("cls.", "lm_head.", "pooler.", "bert.pooler.", "roberta.pooler.", "mpnet.pooler.")
_MLM_OF_DISTILBERT: Final = ("vocab_transform.", "vocab_layer_norm.", "vocab_projector.")

BERT: Final = EncoderFamily(read_bert, head_names=_POOLER, unused=_UNUSED)
ROBERTA: Final = EncoderFamily(read_roberta, head_names=_TWO_LAYERS, unused=_UNUSED)
MPNET: Final = EncoderFamily(read_mpnet, head_names=_TWO_LAYERS, unused=_UNUSED)
JINA: Final = EncoderFamily(read_jina, head_names=_POOLER, unused=_UNUSED)
DISTILBERT: Final = EncoderFamily(
    read_distilbert,
    head=lambda _, labels: ScoreHeadConfig("cls", labels, F.relu),
    head_names=MappingProxyType({"pre_classifier": "dense", "classifier": "out"}),
    unused=(*_UNUSED, *_MLM_OF_DISTILBERT),
)
