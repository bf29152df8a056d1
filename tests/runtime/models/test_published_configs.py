"""config.json in the forms that models were published with is read, whatever transformers wrote it."""

import pytest

from kvasir.models.architectures import (
    exaone4,
    gemma,
    glm,
    granite,
    hunyuan,
    llama,
    mistral,
    olmo,
    phi3,
    qwen,
    smollm3,
)
from kvasir.models.architectures.layer_norm import cohere, falcon, gpt_neox, phi, starcoder2
from kvasir.models.architectures.mixtures import glm4_moe, gpt_oss, hunyuan_moe, minimax_m2
from kvasir.models.decoder_config import Read, read_with
from runtime.models.published_families import (
    COMMAND_R7B,
    EXAONE_4_32B,
    FALCON_7B,
    GLM_4_9B_0414,
    GRANITE_3_3_8B,
    HUNYUAN_7B,
    OLMO_3_7B,
    PYTHIA_1_4B,
    SMOLLM3_3B,
    STARCODER2_3B,
    Config,
    sizes,
)
from runtime.models.published_mixtures import GLM_4_5_AIR, GPT_OSS_20B, HUNYUAN_A13B, MINIMAX_M2, QWEN1_5_MOE

ANY = {
    "architectures": ["NameForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.0",
    "use_cache": True,
}


LLAMA_3_2_1B = sizes(2048, 8192, 16, 32, 8, 131072, 128256) | {
    "attention_bias": False,
    "head_dim": 64,
    "hidden_act": "silu",
    "mlp_bias": False,
    "model_type": "llama",
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}
MISTRAL_7B_V0_1 = sizes(4096, 14336, 32, 32, 8, 32768, 32000) | {
    "hidden_act": "silu",
    "model_type": "mistral",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
}
QWEN2_5_7B_LONG = sizes(3584, 18944, 28, 28, 4, 32768, 152064) | {
    "hidden_act": "silu",
    "max_window_layers": 28,
    "model_type": "qwen2",
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_mrope": False,
    "use_sliding_window": False,
}
QWEN3_0_6B = sizes(1024, 3072, 28, 16, 8, 40960, 151936) | {
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_window_layers": 28,
    "model_type": "qwen3",
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
}
QWEN3_30B_A3B = sizes(2048, 6144, 48, 32, 4, 40960, 151936) | {
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}
GEMMA_2B = sizes(2048, 16384, 18, 8, 1, 8192, 256000) | {
    "head_dim": 256,
    "hidden_act": "gelu",
    "hidden_activation": None,
    "model_type": "gemma",
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
}
GEMMA_2_2B = sizes(2304, 9216, 26, 8, 4, 8192, 256000) | {
    "attention_bias": False,
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "model_type": "gemma2",
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
}
GEMMA_3_1B = sizes(1152, 6912, 26, 4, 1, 32768, 262144) | {
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "model_type": "gemma3_text",
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
}
PHI_3_MINI_128K = sizes(3072, 8192, 32, 32, 32, 131072, 32064) | {
    "attention_bias": False,
    "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
    "embd_pdrop": 0.0,
    "hidden_act": "silu",
    "model_type": "phi3",
    "original_max_position_embeddings": 4096,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"long_factor": [1.5] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
    "rope_theta": 10000.0,
    "sliding_window": 262144,
    "tie_word_embeddings": False,
}
PHI_4_MINI = sizes(3072, 8192, 32, 24, 8, 131072, 200064) | {
    "attention_bias": False,
    "embd_pdrop": 0.0,
    "full_attn_mod": 1,
    "hidden_act": "silu",
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "mlp_bias": False,
    "model_type": "phi3",
    "original_max_position_embeddings": 4096,
    "partial_rotary_factor": 0.75,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"long_factor": [1] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
    "rope_theta": 10000.0,
    "sliding_window": 262144,
    "tie_word_embeddings": True,
}
PHI_2 = sizes(2560, 10240, 32, 32, 32, 2048, 51200) | {
    "embd_pdrop": 0.0,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-05,
    "model_type": "phi",
    "partial_rotary_factor": 0.4,
    "qk_layernorm": False,
    "resid_pdrop": 0.1,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("read", "config", "windows", "rotated"),
    [
        (llama.read_config, LLAMA_3_2_1B, {None}, 64),
        (mistral.read_config, MISTRAL_7B_V0_1, {4096}, 128),
        (qwen.read_qwen2, QWEN2_5_7B_LONG, {None}, 128),
        (qwen.read_qwen3, QWEN3_0_6B, {None}, 128),
        (qwen.read_qwen3_moe, QWEN3_30B_A3B, {None}, 128),
        (gemma.read_gemma, GEMMA_2B, {None}, 256),
        (gemma.read_gemma2, GEMMA_2_2B, {None, 4096}, 256),
        (gemma.read_gemma3, GEMMA_3_1B, {None, 512}, 256),
        (phi3.read_config, PHI_3_MINI_128K, {262144}, 96),
        (phi3.read_config, PHI_4_MINI, {262144}, 96),
        (phi.read_config, PHI_2, {None}, 32),
        (smollm3.read_config, SMOLLM3_3B, {None}, 128),
        (olmo.read_olmo3, OLMO_3_7B, {None, 4096}, 128),
        (granite.read_config, GRANITE_3_3_8B, {None}, 128),
        (cohere.read_cohere2, COMMAND_R7B, {None, 4096}, 128),
        (glm.read_glm4, GLM_4_9B_0414, {None}, 64),
        (exaone4.read_config, EXAONE_4_32B, {None, 4096}, 128),
        (hunyuan.read_config, HUNYUAN_7B, {None}, 128),
        (gpt_neox.read_config, PYTHIA_1_4B, {None}, 32),
        (falcon.read_config, FALCON_7B, {None}, 64),
        (starcoder2.read_config, STARCODER2_3B, {4096}, 128),
        (gpt_oss.read_config, GPT_OSS_20B, {None, 128}, 64),
        (glm4_moe.read_glm4_moe, GLM_4_5_AIR, {None}, 64),
        (minimax_m2.read_config, MINIMAX_M2, {None}, 64),
        (qwen.read_qwen2_moe, QWEN1_5_MOE, {None}, 128),
        (hunyuan_moe.read_config, HUNYUAN_A13B, {None}, 128),
    ],
)
def test_a_published_config_is_read(read: Read, config: Config, windows: set[int | None], rotated: int) -> None:
    decoder = read_with(read, ANY | config)
    assert {layer.window for layer in decoder.layers} == windows
    assert {layer.rope.dim for layer in decoder.layers if layer.rope is not None} == {rotated}
    assert decoder.vocab_size == config["vocab_size"]
    assert len(decoder.layers) == config["num_hidden_layers"]
