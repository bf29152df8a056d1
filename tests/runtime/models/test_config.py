"""config.json is read strictly: a key that may change the model is known or refused by name."""

import math
from typing import Any

import pytest

from kvasir.layers.activation import ACTIVATIONS
from kvasir.layers.rotary import LinearScaling, Llama3Scaling, LongRopeScaling, Rope, RopeScaling, YarnScaling
from kvasir.models.architectures import gemma, llama, mistral, phi3, qwen
from kvasir.models.architectures.layer_norm import gpt2, phi
from kvasir.models.decoder_config import DecoderConfig, Read, read_with
from kvasir.models.model_load_error import ModelLoadError

LLAMA = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
READ_LLAMA3 = Llama3Scaling(8.0, 1.0, 4.0, 64)
YARN = {"factor": 4.0, "original_max_position_embeddings": 32}


def rope_of(config: DecoderConfig) -> Rope:
    (rope,) = {layer.rope for layer in config.layers}
    assert rope is not None
    return rope


def windows_of(config: DecoderConfig) -> list[int | None]:
    return [layer.window for layer in config.layers]


def test_defaults_of_llama() -> None:
    config = read_with(llama.read_config, LLAMA)
    assert config.heads.kv_heads == 4
    assert config.heads.head_dim == 16
    assert rope_of(config) == Rope(16, 10000.0, None)
    assert windows_of(config) == [None, None]
    assert not config.tied


def test_null_is_absent() -> None:
    config = read_with(
        llama.read_config, LLAMA | {"head_dim": None, "num_key_value_heads": None, "rope_scaling": None}
    )
    assert config == read_with(llama.read_config, LLAMA)


@pytest.mark.parametrize(
    ("keys", "theta", "scaling"),
    [
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5, None),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3"} | LLAMA3}, 5e5, READ_LLAMA3),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5} | LLAMA3}, 5e5, READ_LLAMA3),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 10000.0, LinearScaling(2.0)),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, 10000.0, LinearScaling(2.0)),
        (
            {"rope_scaling": {"type": "yarn"} | YARN},
            10000.0,
            YarnScaling(4.0, 32, 32.0, 1.0, truncate=True, attention_factor=0.1 * math.log(4) + 1),
        ),
        (
            {"rope_scaling": {"type": "yarn", "mscale": 0.7, "mscale_all_dim": 0} | YARN},
            10000.0,
            YarnScaling(4.0, 32, 32.0, 1.0, truncate=True, attention_factor=0.1 * math.log(4) + 1),
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "mscale": 2.0, "mscale_all_dim": 2.0} | YARN},
            10000.0,
            YarnScaling(4.0, 32, 32.0, 1.0, truncate=True, attention_factor=1.0),
        ),
    ],
)
def test_rope_of_old_and_new_files(keys: dict[str, Any], theta: float, scaling: RopeScaling | None) -> None:
    config = read_with(llama.read_config, LLAMA | keys)
    assert rope_of(config) == Rope(16, theta, scaling)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"sliding_window": 4096}, "sliding_window"),
        ({"hidden_act": "mish"}, "hidden_act.*'mish'.*silu"),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 4.0}}, "rope_type.*'ntk'.*default, dynamic, linear"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor.*supported is 1.0"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": math.inf}},
            "factor.*inf; supported is a number above 0",
        ),
        ({"rope_scaling": {"rope_type": "yarn", "attn_factor": 4.0} | YARN}, "rope_scaling.*'attn_factor'"),
        ({"rope_scaling": {"type": "dynamic"}}, "rope_scaling.*lacks 'factor'"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "alpha": 1}}, "rope_parameters.*'alpha'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters.*lacks 'factor'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_scaling": {"factor": 4.0}}, "factor .* without a rope_type"),
        ({"rope_local_base_freq": 4.0}, "rope_local_base_freq"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"hidden_size": "64"}, "hidden_size.*'64'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"attention_bias": "yes"}, "attention_bias.*true or false"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
    ],
)
def test_what_llama_does_not_support_is_named(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        read_with(llama.read_config, LLAMA | keys)


def test_a_key_that_is_off_asks_for_nothing() -> None:
    assert read_with(llama.read_config, LLAMA | {"sliding_window": None, "rope_interleaved": False}) == read_with(
        llama.read_config, LLAMA
    )


def test_windows_of_mistral() -> None:
    assert windows_of(read_with(mistral.read_config, LLAMA)) == [
        4096,
        4096,
    ]  # what transformers takes an absent key for
    assert windows_of(read_with(mistral.read_config, LLAMA | {"sliding_window": None})) == [None, None]
    assert windows_of(read_with(mistral.read_config, LLAMA | {"sliding_window": 5})) == [5, 5]


def test_windows_of_qwen() -> None:
    window = {"sliding_window": 9, "max_window_layers": 1}
    for read in (qwen.read_qwen2, qwen.read_qwen3):
        assert windows_of(read_with(read, LLAMA | window)) == [None, None]
        assert windows_of(read_with(read, LLAMA | window | {"use_sliding_window": True})) == [None, 9]
        everywhere = {"max_window_layers": 0, "use_sliding_window": True}
        assert windows_of(read_with(read, LLAMA | window | everywhere)) == [9, 9]
        types = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True}
        assert windows_of(read_with(read, LLAMA | window | types)) == [9, None]


def test_biases_and_norms_of_qwen() -> None:
    second, third = read_with(qwen.read_qwen2, LLAMA), read_with(qwen.read_qwen3, LLAMA | {"head_dim": 16})
    assert (second.qkv_bias, second.output_bias, second.qk_norm) == (True, False, None)
    assert (third.qkv_bias, third.output_bias, third.qk_norm is None) == (False, False, False)


def test_experts_stand_in_every_nth_layer_that_is_not_named() -> None:
    config = read_with(
        qwen.read_qwen3_moe,
        LLAMA | {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3], "num_experts": 16},
    )
    assert [layer.experts is not None for layer in config.layers] == [False, True, False, False, False, True]


def test_the_first_gemma_means_tanh_by_gelu() -> None:
    for keys in ({"hidden_act": "gelu"}, {"hidden_act": "gelu", "hidden_activation": None}, {}):
        assert read_with(gemma.read_gemma, LLAMA | keys).activation is ACTIVATIONS["gelu_pytorch_tanh"]


def test_caps_and_windows_of_gemma2() -> None:
    config = read_with(gemma.read_gemma2, LLAMA)
    assert (config.score_cap, config.logit_cap) == (50.0, 30.0)
    assert windows_of(config) == [4096, None]
    off = read_with(gemma.read_gemma2, LLAMA | {"attn_logit_softcapping": None, "final_logit_softcapping": None})
    assert (off.score_cap, off.logit_cap) == (None, None)


def test_gemma3_of_old_files_has_a_pattern_and_two_rotations() -> None:
    old = {
        "num_hidden_layers": 4,
        "sliding_window": 7,
        "sliding_window_pattern": 2,
        "rope_theta": 5e5,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    config = read_with(gemma.read_gemma3, LLAMA | old)
    assert windows_of(config) == [7, None, 7, None]
    within, everywhere = config.layers[0].rope, config.layers[1].rope
    assert within == Rope(256, 100.0, None)
    assert everywhere == Rope(256, 5e5, LinearScaling(8.0))


def test_longrope_of_phi3_under_each_of_its_names() -> None:
    factors = {"short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    for name in ("su", "longrope"):
        config = read_with(
            phi3.read_config,
            LLAMA
            | {"rope_scaling": {"type": name} | factors, "partial_rotary_factor": 0.75}
            | {"original_max_position_embeddings": 32},
        )
        stretched = math.sqrt(1 + math.log(4) / math.log(32))
        scaling = LongRopeScaling((1.0,) * 6, (2.0,) * 6, 32, stretched)
        assert rope_of(config) == Rope(12, 10000.0, scaling)


@pytest.mark.parametrize(
    ("read", "keys", "named"),
    [
        (mistral.read_config, {"layer_types": ["full_attention"] * 2}, "layer_types"),
        (qwen.read_qwen2, {"attention_bias": True}, "attention_bias"),
        (qwen.read_qwen2, {"layer_types": ["full_attention"]}, "layer_types.*2 entries"),
        (qwen.read_qwen3, {"layer_types": ["full_attention", "linear_attention"]}, "full_attention, sliding"),
        (qwen.read_qwen3, {"layer_types": ["sliding_attention"] * 2}, "no sliding_window"),
        (qwen.read_qwen3_moe, {"use_sliding_window": True}, "use_sliding_window"),
        (qwen.read_qwen3_moe, {"num_experts_per_tok": 9, "num_experts": 8}, "num_experts_per_tok.*8 experts"),
        (qwen.read_qwen3_moe, {"mlp_only_layers": "0"}, "mlp_only_layers.*list of whole numbers"),
        (gemma.read_gemma, {"hidden_act": "silu"}, "hidden_act.*gelu"),
        (gemma.read_gemma2, {"sliding_window_size": 17}, "sliding_window_size.*supported is 4096"),
        (gemma.read_gemma2, {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (gemma.read_gemma3, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping.*supported is null"),
        (gemma.read_gemma3, {"rope_parameters": {"chunked_attention": {"rope_theta": 1.0}}}, "chunked_attention"),
        (phi3.read_config, {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "yarn.*default, longrope, su"),
        (
            phi3.read_config,
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            "short_factor.*list of 8 numbers",
        ),
        (phi.read_config, {"partial_rotary_factor": 0.1}, "partial_rotary_factor.*even number"),
        (phi.read_config, {"partial_rotary_factor": 1.5}, "partial_rotary_factor.*within the head"),
    ],
)
def test_what_the_others_do_not_support_is_named(read: Read, keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        read_with(read, LLAMA | keys)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"activation_function": "mish"}, "activation_function"),
        ({"n_head": 5}, "n_head"),
        ({"rotary_dim": 32}, "rotary_dim"),
    ],
)
def test_what_gpt2_does_not_support_is_named(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        read_with(gpt2.read_config, keys)
