"""config.json in the forms that encoders were published with is read."""

from typing import Any

import pytest
import torch

from kvasir.layers.rotary import NTKScaling, inverse_frequencies
from kvasir.models.build_pooling import ENCODERS
from kvasir.models.model_load_error import ModelLoadError

MODERN_BERT_BASE = {
    "architectures": ["ModernBertForMaskedLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 50281, "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0,
    "classifier_pooling": "mean", "cls_token_id": 50281, "decoder_bias": True, "deterministic_flash_attn": False,
    "embedding_dropout": 0.0, "eos_token_id": 50282, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
    "gradient_checkpointing": False, "hidden_activation": "gelu", "hidden_size": 768,
    "initializer_cutoff_factor": 2.0, "initializer_range": 0.02, "intermediate_size": 1152, "layer_norm_eps": 1e-05,
    "local_attention": 128, "local_rope_theta": 10000.0, "max_position_embeddings": 8192, "mlp_bias": False,
    "mlp_dropout": 0.0, "model_type": "modernbert", "norm_bias": False, "norm_eps": 1e-05,
    "num_attention_heads": 12, "num_hidden_layers": 22, "pad_token_id": 50283,
    "position_embedding_type": "absolute", "reference_compile": None, "repad_logits_with_grad": False,
    "sep_token_id": 50282, "sparse_pred_ignore_index": -100, "sparse_prediction": False,
    "tie_word_embeddings": True, "torch_dtype": "float32", "vocab_size": 50368,
}  # fmt: skip
NOMIC_EMBED_1_5 = {
    "activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0,
    "auto_map": {"AutoConfig": "nomic-ai/nomic-bert-2048--configuration_hf_nomic_bert.NomicBertConfig"},
    "bos_token_id": None, "causal": False, "dense_seq_output": True, "embd_pdrop": 0.0, "eos_token_id": None,
    "fused_bias_fc": True, "fused_dropout_add_ln": True, "initializer_range": 0.02, "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "model_type": "nomic_bert",
    "n_embd": 768, "n_head": 12, "n_inner": 3072, "n_layer": 12, "n_positions": 8192, "pad_vocab_size_multiple": 64,
    "parallel_block": False, "parallel_block_tied_norm": False, "prenorm": False, "qkv_proj_bias": False,
    "reorder_and_upcast_attn": False, "resid_pdrop": 0.0, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True, "summary_activation": None,
    "summary_first_dropout": 0.0, "summary_proj_to_labels": True, "summary_type": "cls_index",
    "summary_use_proj": True, "torch_dtype": "float32", "transformers_version": "4.37.2", "type_vocab_size": 2,
    "use_cache": True, "use_flash_attn": True, "use_rms_norm": False, "use_xentropy": True, "vocab_size": 30528,
}  # fmt: skip
GTE_MULTILINGUAL = {
    "architectures": ["NewModel"], "attention_probs_dropout_prob": 0.0,
    "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"}, "classifier_dropout": 0.0,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768, "id2label": {"0": "LABEL_0"},
    "initializer_range": 0.02, "intermediate_size": 3072, "label2id": {"LABEL_0": 0}, "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm", "logn_attention_clip1": False, "logn_attention_scale": False,
    "max_position_embeddings": 8192, "model_type": "new", "num_attention_heads": 12, "num_hidden_layers": 12,
    "pack_qkv": True, "pad_token_id": 1, "position_embedding_type": "rope",
    "rope_scaling": {"factor": 8.0, "type": "ntk"}, "rope_theta": 20000, "torch_dtype": "float16",
    "transformers_version": "4.39.1", "type_vocab_size": 1, "unpad_inputs": False,
    "use_memory_efficient_attention": False, "vocab_size": 250048,
}  # fmt: skip
PUBLISHED = {"ModernBert": MODERN_BERT_BASE, "NomicBert": NOMIC_EMBED_1_5, "New": GTE_MULTILINGUAL}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_config_is_read(name: str) -> None:
    config = ENCODERS[name].config(PUBLISHED[name])
    assert config.hidden_size == 768
    assert config.heads.head_dim == 64
    assert config.rope is not None


def test_modern_bert_has_its_windows_and_thetas() -> None:
    config = ENCODERS["ModernBert"].config(MODERN_BERT_BASE)
    assert config.windows[:4] == (None, 128, 128, None)
    assert [rope.theta for rope in (config.rope, config.local_rope) if rope] == [160000.0, 10000.0]


def test_gte_stretches_wavelengths_by_its_formula() -> None:
    rope = ENCODERS["New"].config(GTE_MULTILINGUAL).rope
    assert rope is not None
    assert rope.scaling == NTKScaling(8.0)
    # Its own: of theta * factor, divided by factor ** (2 / dim).
    expected = 1 / (20000 * 8.0) ** (torch.arange(0, 64, 2).double() / 64) / 8 ** (2 / 64)
    torch.testing.assert_close(inverse_frequencies(rope, 8192).double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("NomicBert", {"moe_every_n_layers": 2}),
        ("NomicBert", {"activation_function": "gelu"}),
        ("NomicBert", {"prenorm": True}),
        ("New", {"logn_attention_scale": True}),
        ("New", {"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.6}}),
        ("ModernBert", {"classifier_pooling": "mean", "clip_qkv": 2.0}),
    ],
)
def test_setting_that_changes_vectors_is_refused(name: str, changes: dict[str, Any]) -> None:
    key = list(changes)[-1]
    with pytest.raises(ModelLoadError, match="mixed_b" if key == "rope_scaling" else key):
        ENCODERS[name].config({**PUBLISHED[name], **changes})
