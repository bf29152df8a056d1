"""GTE (Zhang et al., 2024), Alibaba's `NewModel`: BERT with rotary positions and a gated feed-forward layer."""

from types import MappingProxyType
from typing import Final

from kvasir.layers.activation import ACTIVATIONS
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import read_heads
from kvasir.models.pooling.encoder import EncoderConfig, FeedForwardGate
from kvasir.models.pooling.encoder_family import EncoderFamily
from kvasir.models.rope_config import TYPES, read_rope

_NEUTRAL: Final = MappingProxyType({
    "layer_norm_type": "layer_norm", "logn_attention_scale": False, "pack_qkv": True,
    "position_embedding_type": "rope",
})  # fmt: skip
_WITHOUT_EFFECT: Final = {
    *("logn_attention_clip1", "unpad_inputs", "use_memory_efficient_attention"),
}
_NAMES: Final = MappingProxyType({
    "embeddings.word_embeddings": "embeddings.word",
    "embeddings.token_type_embeddings": "embeddings.token_type",
    "embeddings.LayerNorm": "embeddings.norm",
    "encoder.layer.N.attention.qkv_proj": "layers.N.attention.qkv",
    "encoder.layer.N.attention.o_proj": "layers.N.attention.out",
    "encoder.layer.N.attn_ln": "layers.N.attention_norm",
    "encoder.layer.N.mlp.up_gate_proj": "layers.N.mlp.gate_up_proj",
    "encoder.layer.N.mlp.down_proj": "layers.N.mlp.down_proj",
    "encoder.layer.N.mlp_ln": "layers.N.mlp_norm",
})  # fmt: skip


def read_config(reader: ConfigReader) -> EncoderConfig:
    for key, value in _NEUTRAL.items():
        reader.require(key, value)
    heads = read_heads(reader)
    reader.ignore(*_WITHOUT_EFFECT)
    return EncoderConfig(
        vocab_size=reader.integer("vocab_size"),
        hidden_size=reader.integer("hidden_size"),
        intermediate_size=reader.integer("intermediate_size"),
        heads=heads,
        num_layers=reader.integer("num_hidden_layers"),
        activation=reader.choice("hidden_act", "gelu", ACTIVATIONS),
        eps=reader.number("layer_norm_eps", 1e-12),
        token_types=reader.integer("type_vocab_size", 1, least=0),
        rope=read_rope(reader, heads, longest=8192, theta=160_000.0, types=TYPES | {"ntk"}),
        gate=FeedForwardGate(bias=False, output_bias=True, up_first=True),
        names=_NAMES,
        prefixes=("new.", "gte."),
    )


GTE: Final = EncoderFamily(
    read_config,
    head_names=MappingProxyType({"new.pooler.dense": "dense", "gte.pooler.dense": "dense", "classifier": "out"}),
    unused=("lm_head.", "pooler.", "new.pooler.", "gte.pooler."),
)
