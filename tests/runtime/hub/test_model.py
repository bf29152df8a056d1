import json
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kvasir.hub.hub_errors import HubError, ModelNotFound
from kvasir.hub.model_info import ARCHITECTURES, ModelInfo, load_model_info

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "max_position_embeddings": 2048,
    "vocab_size": 100,
    "eos_token_id": 2,
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def model(path: Path, generation: dict[str, Any] | None = None, **config: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    values = {key: value for key, value in (CONFIG | config).items() if value is not ...}
    (path / "config.json").write_text(json.dumps(values))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def info(path: Path, generation: dict[str, Any] | None = None, **config: Any) -> ModelInfo:
    return load_model_info(model(path, generation, **config))


def test_facts_are_read(tmp_path: Path) -> None:
    facts = info(tmp_path, {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "eos_token_id": [5, 3, 5]})
    assert facts.path == tmp_path
    assert facts.architecture == "LlamaForCausalLM"
    assert facts.config == CONFIG
    assert facts.dtype == "bfloat16"
    assert facts.max_model_len == 2048
    assert facts.vocab_size == 100
    assert facts.eos_token_ids == (5, 3, 2)
    assert facts.generation_defaults == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}


@pytest.mark.parametrize(
    ("fields", "width"),
    [
        ({"hidden_size": 64}, 64),
        ({"n_embd": 768}, 768),
        ({"text_config": {"hidden_size": 32}, "hidden_size": 64}, 32),
        ({}, None),
    ],
)
def test_the_width_is_the_language_models_hidden_size(
    tmp_path: Path, fields: dict[str, Any], width: int | None
) -> None:
    assert info(tmp_path, **fields).width == width


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [
        ({"dtype": "float16"}, "float16"),
        ({"dtype": ..., "torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "half"}, "float16"),
        ({"dtype": "auto"}, "float32"),
        ({"dtype": "torch.float16"}, "float16"),
        ({"dtype": None}, "float32"),
        ({"dtype": ...}, "float32"),
    ],
)
def test_dtype_has_two_names_and_defaults_to_float32(tmp_path: Path, fields: dict[str, Any], dtype: str) -> None:
    assert info(tmp_path, **fields).dtype == dtype


@pytest.mark.parametrize("name", ["max_position_embeddings", "n_positions", "n_ctx", "seq_length"])
def test_context_length_has_several_names(tmp_path: Path, name: str) -> None:
    fields: dict[str, Any] = {"max_position_embeddings": ..., name: 512}
    assert info(tmp_path, **fields).max_model_len == 512


def test_context_length_of_falcon_may_be_absent(tmp_path: Path) -> None:
    assert info(tmp_path, max_position_embeddings=..., model_type="falcon").max_model_len == 2048
    assert info(tmp_path, max_position_embeddings=512, model_type="falcon").max_model_len == 512


YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 2048}}, 8192),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 1024}}, 4096),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 512}}, 2048),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 64}}, 2048),
        ({"rope_scaling": YARN}, 8192),
        ({"rope_parameters": {"type": "yarn", "factor": 2.5, "original_max_position_embeddings": 2048}}, 5120),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 4096),
        ({"rope_scaling": {"type": "linear", "factor": 2}, "architectures": ["Gemma3ForCausalLM"]}, 2048),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 2048),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 8.0}}, 2048),
        ({"rope_scaling": {"rope_type": "yarn", "factor": "4"}}, 2048),
        ({"rope_scaling": {"factor": 4.0}}, 2048),
        ({"rope_scaling": None, "rope_parameters": {"rope_type": "default"}}, 2048),
    ],
)
def test_yarn_and_linear_scaling_extend_the_context(tmp_path: Path, fields: dict[str, Any], length: int) -> None:
    assert info(tmp_path, **fields).max_model_len == length


def test_language_model_of_a_nested_config_is_read(tmp_path: Path) -> None:
    text = {"max_position_embeddings": 64, "vocab_size": 10, "eos_token_id": [1], "dtype": "float16"}
    facts = info(tmp_path, max_position_embeddings=..., vocab_size=99, dtype=..., text_config=text)
    assert (facts.max_model_len, facts.vocab_size, facts.eos_token_ids, facts.dtype) == (64, 10, (1,), "float16")


def test_only_the_generation_defaults_that_are_set_are_given(tmp_path: Path) -> None:
    assert info(tmp_path).generation_defaults == {}
    generation = {
        "temperature": None,
        "top_k": 0,
        "do_sample": True,
        "repetition_penalty": 1.1,
        "length_penalty": 2,
    }
    assert info(tmp_path, generation).generation_defaults == {"top_k": 0, "repetition_penalty": 1.1}
    assert info(tmp_path, {"min_p": 0.05}).generation_defaults == {"min_p": 0.05}


KV_SCHEME = {
    "quant_method": "compressed-tensors",
    "config_groups": {},
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"},
}


def test_scales_of_the_kv_cache_alone_are_accepted(tmp_path: Path) -> None:
    assert info(tmp_path, quantization_config=KV_SCHEME).dtype == info(tmp_path).dtype


def test_a_state_model_has_a_default_context_and_a_note(tmp_path: Path) -> None:
    found = info(tmp_path, model_type="mamba", max_position_embeddings=...)
    assert found.max_model_len == 2048
    assert "it names no longest context, so 2048 tokens are used" in found.notes[-1]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"architectures": ...}, "architectures is missing"),
        ({"architectures": None}, "architectures is missing"),
        ({"architectures": []}, r"architectures is \[\]"),
        ({"dtype": "float8_e4m3fn"}, "dtype is 'float8_e4m3fn', it must be one of float32, bfloat16, float16"),
        ({"max_position_embeddings": ...}, "max_position_embeddings is missing"),
        ({"max_position_embeddings": "2k"}, "max_position_embeddings is '2k', it must be a whole number"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn', it must be an object"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\], it must be an object"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "quantization: weights that MLX quantised"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: quant_method is None, .* awq, .* gptq"),
        ({"quantization_config": {"quant_method": []}}, r"quantization_config: quant_method is \[\], "),
        ({"text_config": {"quantization_config": {"bits": 4}}}, "quantization_config: quant_method is None, "),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 3, "group_size": 128}},
            "quantization_config: gptq weights: bits is 3 and must be one of 4, 8: use another",
        ),
        (
            {"quantization_config": KV_SCHEME | {"config_groups": {"group_0": {}}}},
            "quantization_config: compressed-tensors weights: weights is missing",
        ),
    ],
)
def test_unusable_field_is_named_with_what_it_must_be(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(HubError, match=f"{tmp_path}/config.json: {said}"):
        info(tmp_path, **fields)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 50.0}, {"top_k": 50}),
        ({"top_p": 0}, {"top_p": 1.0}),
        ({"top_p": 0.0}, {"top_p": 1.0}),
        ({"repetition_penalty": 0}, {"repetition_penalty": 1.0}),
        ({"min_p": -1}, {"min_p": 0.0}),
    ],
)
def test_what_other_programs_write_for_off_is_off(
    tmp_path: Path, generation: dict[str, Any], expected: dict[str, Any]
) -> None:
    facts = info(tmp_path, generation)
    assert facts.generation_defaults == expected
    assert facts.notes == ()


@pytest.mark.parametrize(
    "generation",
    [
        {"temperature": -1},
        {"temperature": "hot"},
        {"temperature": True},
        {"temperature": float("nan")},
        {"top_p": 1.5},
        {"top_p": -0.5},
        {"top_k": 1.5},
        {"top_k": float("inf")},
        {"top_k": -2},
        {"min_p": 1.5},
        {"repetition_penalty": -1},
        {"max_new_tokens": 0},
        {"max_new_tokens": "all"},
        {"eos_token_id": "</s>"},
        {"eos_token_id": [1.5]},
    ],
)
def test_an_unusable_value_of_generation_config_is_a_note(tmp_path: Path, generation: dict[str, Any]) -> None:
    name, value = next(iter(generation.items()))
    facts = info(tmp_path, generation)
    assert (facts.generation_defaults, facts.max_new_tokens, facts.eos_token_ids) == ({}, None, (2,))
    (note,) = facts.notes
    assert note.startswith(f"{tmp_path}/generation_config.json: {name} is {value!r} and is not used")


def test_max_new_tokens_of_the_file_is_read(tmp_path: Path) -> None:
    assert info(tmp_path, {"max_new_tokens": 512}).max_new_tokens == 512
    assert info(tmp_path, {"max_new_tokens": None}).max_new_tokens is None


def test_directory_without_config_holds_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=rf"{tmp_path} holds no model: it has no config\.json"):
        load_model_info(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "is not JSON"), (b"{", "is not JSON"), (b"\xff", "is not JSON"), (b"[]", "a JSON list, not an object")],
)
def test_broken_config_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(HubError, match=rf"{tmp_path}/config\.json .*{said}.*download it again"):
        load_model_info(tmp_path)


def test_fingerprint_depends_on_values_and_not_on_spelling(tmp_path: Path) -> None:
    first = info(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_text(json.dumps(dict(reversed(CONFIG.items())), indent=4))
    assert load_model_info(tmp_path / "b").fingerprint == first.fingerprint
    assert len(first.fingerprint) == 32
    assert info(tmp_path / "c", hidden_size=8).fingerprint != first.fingerprint


def test_fingerprint_depends_on_weights_index_and_commit(tmp_path: Path) -> None:
    plain = info(tmp_path / "a").fingerprint
    (tmp_path / "a" / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 1}}')
    indexed = load_model_info(tmp_path / "a").fingerprint
    snapshot = info(tmp_path / "snapshots" / COMMIT).fingerprint
    other = info(tmp_path / "snapshots" / COMMIT[::-1]).fingerprint
    assert len({plain, indexed, snapshot, other}) == 4


def test_tokenizer_hash_ignores_the_chat_template(tmp_path: Path) -> None:
    path = model(tmp_path)
    (path / "tokenizer.json").write_text("{}")
    (path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    before = load_model_info(path).tokenizer_hash
    (path / "tokenizer_config.json").write_text('{"chat_template": "x",\n"eos_token": "</s>"}')
    (path / "chat_template.jinja").write_text("y")
    assert load_model_info(path).tokenizer_hash == before
    (path / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    changed = load_model_info(path).tokenizer_hash
    (path / "tokenizer.json").write_text('{"version": "1.0"}')
    assert len({before, changed, load_model_info(path).tokenizer_hash}) == 3


@pytest.mark.parametrize(("model_type", "name"), list(ARCHITECTURES.items()))
def test_missing_architectures_follow_from_the_model_type(tmp_path: Path, model_type: str, name: str) -> None:
    assert MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type] == name
    assert info(tmp_path, architectures=None, model_type=model_type).architecture == name


def test_quantization_of_a_converted_gguf_file_is_a_note(tmp_path: Path) -> None:
    """Transformers leaves it in the config of the float weights that it made."""
    info(tmp_path, quantization_config={"quant_method": "gguf", "dequantize": False})
