"""config.json is read strictly: a key that may change the model is known or refused by name."""

from typing import Any

import pytest

from kvasir.layers.rotary import LinearScaling, Llama3Scaling
from kvasir.models import gpt2, llama
from kvasir.models.errors import ModelLoadError

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


def test_defaults_of_llama() -> None:
    config = llama.read_config(LLAMA)
    assert config.heads.kv_heads == 4
    assert config.heads.head_dim == 16
    assert (config.rope_theta, config.rope_scaling) == (10000.0, None)
    assert not config.tied


def test_null_is_absent() -> None:
    config = llama.read_config(LLAMA | {"head_dim": None, "num_key_value_heads": None, "rope_scaling": None})
    assert config == llama.read_config(LLAMA)


@pytest.mark.parametrize(
    ("keys", "theta", "scaling"),
    [
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5, None),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3"} | LLAMA3}, 5e5, READ_LLAMA3),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5} | LLAMA3}, 5e5, READ_LLAMA3),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 10000.0, LinearScaling(2.0)),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, 10000.0, LinearScaling(2.0)),
    ],
)
def test_rope_of_old_and_new_files(keys: dict[str, Any], theta: float, scaling: object) -> None:
    config = llama.read_config(LLAMA | keys)
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"sliding_window": 4096}, "sliding_window"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_act": "mish"}, "hidden_act.*'mish'.*silu"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type.*'yarn'.*default, linear, llama3"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "type.*'dynamic'"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "beta": 1}}, "rope_parameters.*'beta'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters.*lacks 'factor'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
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
        llama.read_config(LLAMA | keys)


def test_a_key_that_is_off_asks_for_nothing() -> None:
    assert llama.read_config(LLAMA | {"sliding_window": None, "rope_interleaved": False}) == llama.read_config(
        LLAMA
    )


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
        gpt2.read_config(keys)
