"""NomicBERT (Nussbaum et al., 2024): BERT with rotary positions, SwiGLU and no biases."""

from types import MappingProxyType
from typing import Final

from kvasir.layers.activation import ACTIVATIONS
from kvasir.models.config_reader import ConfigReader
from kvasir.models.decoder_config import read_heads
from kvasir.models.pooling.encoder import EncoderConfig, FeedForwardGate
from kvasir.models.pooling.encoder_family import EncoderFamily
from kvasir.models.rope_config import read_rope

# The names of the published files, which are those of GPT-2, and those of transformers.
_KEYS: Final = MappingProxyType({
    "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers", "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps", "rotary_emb_base": "rope_theta",
    "rotary_emb_fraction": "partial_rotary_factor",
})  # fmt: skip
_NEUTRAL: Final = MappingProxyType({
    "causal": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "moe_every_n_layers": 0, "parallel_block": False,
    "prenorm": False, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False, "use_rms_norm": False,
})  # fmt: skip
_WITHOUT_EFFECT: Final = {
    # Beyond max_trained_positions, which no request reaches.
    *("rotary_scaling_factor", "max_trained_positions"),
    *("dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "last_layer_subset", "use_flash_attn"),
    *("reorder_and_upcast_attn", "pad_vocab_size_multiple", "expert_choice_router", "ffn_div", "moe_impl"),
    *("moe_normalize_expert_weights", "moe_resid_pdrop", "moe_top_k", "num_shared_experts", "router_aux_loss_coef"),
    *("num_experts", "use_xentropy", "mlp_checkpoint_lvl", "checkpoint_lvl", "use_cache"),
}
_NAMES: Final = MappingProxyType({
    "embeddings.word_embeddings": "embeddings.word",
    "embeddings.token_type_embeddings": "embeddings.token_type",
    "emb_ln": "embeddings.norm",
    "encoder.layers.N.attn.Wqkv": "layers.N.attention.qkv",
    "encoder.layers.N.attn.out_proj": "layers.N.attention.out",
    "encoder.layers.N.norm1": "layers.N.attention_norm",
    "encoder.layers.N.mlp.fc11": "layers.N.mlp.gate_up_proj#up_proj",
    "encoder.layers.N.mlp.fc12": "layers.N.mlp.gate_up_proj#gate_proj",
    "encoder.layers.N.mlp.fc2": "layers.N.mlp.down_proj",
    "encoder.layers.N.norm2": "layers.N.mlp_norm",
})  # fmt: skip


def read_config(reader: ConfigReader) -> EncoderConfig:
    reader.change({}, names=_KEYS)
    for key, value in _NEUTRAL.items():
        reader.require(key, value)
    heads = read_heads(reader)
    reader.choice("activation_function", "swiglu", {"swiglu": None})
    reader.ignore(*_WITHOUT_EFFECT)
    return EncoderConfig(
        vocab_size=reader.integer("vocab_size"),
        hidden_size=reader.integer("hidden_size"),
        intermediate_size=reader.integer("intermediate_size"),
        heads=heads,
        num_layers=reader.integer("num_hidden_layers"),
        activation=reader.choice("hidden_act", "silu", {"silu": ACTIVATIONS["silu"]}),
        eps=reader.number("layer_norm_eps", 1e-12),
        token_types=reader.integer("type_vocab_size", 2, least=0),
        rope=read_rope(reader, heads, longest=2048, theta=1000.0, partial=1.0),
        gate=FeedForwardGate(bias=False, output_bias=False),
        attention_bias=reader.flag("qkv_proj_bias", False),
        names=_NAMES,
        prefixes=("bert.", "nomic_bert."),
    )


NOMIC_BERT: Final = EncoderFamily(
    read_config,
    head_names=MappingProxyType(
        {"bert.pooler.dense": "dense", "nomic_bert.pooler.dense": "dense", "classifier": "out"}
    ),
    unused=("cls.", "pooler.", "bert.pooler.", "nomic_bert.pooler."),
)
