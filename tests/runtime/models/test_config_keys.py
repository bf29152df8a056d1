import dataclasses
import logging
from contextlib import suppress
from typing import Any

import pytest
import transformers

from kvasir.models.architectures import gemma, llama, phi3, qwen
from kvasir.models.architectures.layer_norm import gpt2
from kvasir.models.decoder_config import Read, read_with
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.registry import ARCHITECTURES, reader_of
from runtime.models.test_config import LLAMA

NOTES: dict[str, Any] = {
    "_attn_implementation": "sdpa",
    "_comment": "merged",
    "_model_name_or_path": "My 135M",
    "_num_labels": 1,
    "is_decoder": True,
    "max_sequence_length": 2048,
    "max_seq_len": 4096,
    "model_max_length": 4096,
    "n_special": 0,
    "output_past": True,
    "predict_special_tokens": True,
    "pruned_heads": {},
    "quantization": {},
    "tokenizer_model_max_length": 4096,
    "unk_token_id": 0,
    "unsloth_fixed": True,
    "unsloth_version": "2025.1.1",
    "use_flash_attention": True,
}


def config_of(architecture: str) -> Any:
    return getattr(transformers, architecture).config_class()


def read(architecture: str, values: dict[str, Any]) -> Any:
    if architecture == "Glm4MoeForCausalLM":  # transformers' default has no whole heads
        values = {"head_dim": 128, **values}
    return read_with(reader_of(ARCHITECTURES[architecture]), values)


def read_llama(values: dict[str, Any]) -> Any:
    return read_with(llama.read_config, values)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_field_of_transformers_config_is_a_mere_note(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A field that a new version of transformers reads must be read here, or be refused, too."""
    config = config_of(name)
    values = config.to_dict()
    own = {field.name for field in dataclasses.fields(config)} | set(config.attribute_map) | set(values)
    with caplog.at_level(logging.INFO):
        for key in own:
            with suppress(ModelLoadError):
                read(name, values | {key: values.get(key) or 7})
    assert "change nothing" not in caplog.text


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_notes_of_other_programs_are_one_line_of_the_log(name: str, caplog: pytest.LogCaptureFixture) -> None:
    values = config_of(name).to_dict()
    notes = {key: value for key, value in NOTES.items() if key not in values}
    with caplog.at_level(logging.INFO):
        assert read(name, values | notes) == read(name, values)
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("kvasir")]
    named = [key for key, value in notes.items() if value]
    assert line == f"config.json has keys that change nothing: {', '.join(sorted(named))}"


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(
    ("key", "value", "neutral"),
    [
        ("clip_qkv", 8.0, None),
        ("dual_chunk_attention_config", {"chunk_size": 8}, {}),
        ("embedding_multiplier", 12.0, 1.0),
        ("is_causal", False, True),
        ("logits_scaling", 8.0, 1),
        ("no_rope_layers", [1, 0], []),
        ("residual_multiplier", 0.22, 1.0),
        ("rotary_pct", 0.25, 1.0),
        ("residual_multiplier", 0, None),
        ("bias", "all", "none"),
        ("bias", True, False),
        ("vision_config", {"hidden_size": 8}, {}),
    ],
)
def test_what_may_change_answers_is_refused_unless_neutral(name: str, key: str, value: Any, neutral: Any) -> None:
    values = config_of(name).to_dict()
    if key in values or (name, key) == ("GPTNeoXForCausalLM", "rotary_pct"):
        pytest.skip("the architecture computes with it")
    assert read(name, values | {key: neutral}) == read(name, values)
    with pytest.raises(ModelLoadError, match=f"'{key}'.*may change the answers.*--hf-overrides"):
        read(name, values | {key: value})


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layer_types_are_taken_if_they_are_computed_anyway(name: str) -> None:
    values = config_of(name).to_dict() | {"layer_types": None}
    config = read(name, values)
    windows = [layer.window for layer in config.layers]
    types = ["full_attention" if window is None else "sliding_attention" for window in windows]
    assert read(name, values | {"layer_types": types}) == config
    with pytest.raises(ModelLoadError, match="layer_types"):
        read(name, values | {"layer_types": types[1:]})


@pytest.mark.parametrize(
    "read_config", [llama.read_config, phi3.read_config, qwen.read_qwen3_moe, gemma.read_gemma]
)
def test_layer_types_that_differ_are_refused(read_config: Read) -> None:
    with pytest.raises(ModelLoadError, match=r"layer_types.*\(full, full\).*may change the answers"):
        read_with(read_config, LLAMA | {"layer_types": ["full_attention", "sliding_attention"]})


def test_original_positions_next_to_a_scaling_must_agree() -> None:
    yarn = {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}}
    same = read_llama(LLAMA | yarn | {"original_max_position_embeddings": 64})
    assert same == read_llama(LLAMA | yarn)
    assert read_llama(LLAMA | {"original_max_position_embeddings": 64}) == read_llama(LLAMA)
    with pytest.raises(ModelLoadError, match="original_max_position_embeddings"):
        read_llama(LLAMA | yarn | {"original_max_position_embeddings": 32})


def test_window_that_is_switched_off_changes_nothing() -> None:
    off = {"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 1}
    assert read_llama(LLAMA | off) == read_llama(LLAMA)
    with pytest.raises(ModelLoadError, match="'sliding_window'"):
        read_llama(LLAMA | {"sliding_window": 8})


def test_gpt2_reads_the_names_of_other_architectures() -> None:
    names = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 32}
    own = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 32}
    read = [read_with(gpt2.read_config, values) for values in (names, own, names | own)]
    assert read[0] == read[1] == read[2]
    with pytest.raises(ModelLoadError, match="'hidden_size' to 32; supported is 64"):
        read_with(gpt2.read_config, own | {"hidden_size": 32})
