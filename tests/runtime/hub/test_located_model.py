import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kvasir.config.settings import ModelConfig
from kvasir.hub.hub_errors import HubError
from kvasir.hub.located_model import read_model
from kvasir.hub.model_info import ModelInfo
from kvasir.hub.source import fetch


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = Path(shutil.copytree(fetch("demo://", weights=False), tmp_path / "model"))
    (path / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "top_k": 7, "eos_token_id": 1}))
    return path


def read(model: Path, **options: Any) -> ModelInfo:
    return read_model(ModelConfig(str(model), **options))


def test_the_model_has_its_own_files_without_options(model: Path) -> None:
    info = read(model)
    assert info.tokenizer_path == info.path == model
    assert info.generation_defaults == {"temperature": 0.5, "top_k": 7}
    assert info.overrides == {}


def test_a_tokenizer_of_another_directory_has_its_own_hash(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    changed = json.loads((model / "tokenizer.json").read_text())
    changed["truncation"] = {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    (other / "tokenizer.json").write_text(json.dumps(changed))
    info = read(model, tokenizer=str(other))
    assert (info.path, info.tokenizer_path) == (model, other)
    assert info.tokenizer_hash != read(model).tokenizer_hash
    assert info.fingerprint == read(model).fingerprint


def test_fields_of_config_json_are_replaced(model: Path) -> None:
    config = read(model).config | {"rope_parameters": {"rope_type": "default", "rope_theta": 1.0}}
    (model / "config.json").write_text(json.dumps(config))
    overrides = {"max_position_embeddings": 128, "rope_parameters": {"rope_theta": 3.0}}
    info = read(model, hf_overrides=json.dumps(overrides))
    assert info.max_model_len == 128
    assert info.config["max_position_embeddings"] == 128
    assert info.config["rope_parameters"] == {"rope_type": "default", "rope_theta": 3.0}
    assert info.overrides == overrides
    assert info.fingerprint != read(model).fingerprint


def test_a_wrong_override_is_an_error_of_its_field(model: Path) -> None:
    with pytest.raises(HubError, match=r"^--hf-overrides: vocab_size is 'many', it must be a whole number above 0"):
        read(model, hf_overrides='{"vocab_size": "many"}')


def test_sampling_defaults_come_from_nowhere_or_from_elsewhere(model: Path, tmp_path: Path) -> None:
    assert read(model, generation_config="vllm").generation_defaults == {}
    (tmp_path / "generation_config.json").write_text('{"top_p": 0.25}')
    info = read(model, generation_config=str(tmp_path), override_generation_config='{"temperature": 0}')
    assert info.generation_defaults == {"temperature": 0.0, "top_p": 0.25}


def test_a_directory_without_generation_config_is_an_error(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        HubError, match=r"^--generation-config: .* has no generation_config\.json: give auto, vllm, or"
    ):
        read(model, generation_config=str(tmp_path))


@pytest.mark.parametrize(
    ("option", "content"),
    [("generation_config", r"generation_config\.json"), ("tokenizer", "the tokenizer's files")],
)
def test_a_wrong_path_is_an_error_of_its_option(model: Path, tmp_path: Path, option: str, content: str) -> None:
    flag = "--" + option.replace("_", "-")
    with pytest.raises(
        HubError, match=rf"^{flag}: {tmp_path}/none does not exist, .* directory that holds {content}$"
    ):
        read(model, **{option: str(tmp_path / "none")})
    with pytest.raises(
        HubError, match=rf"^{flag}: .*config\.json is a file: give the directory that holds {content}$"
    ):
        read(model, **{option: str(model / "generation_config.json")})


def test_sampling_defaults_are_replaced_one_by_one(model: Path) -> None:
    info = read(model, override_generation_config='{"temperature": 1.5, "eos_token_id": [3, 4]}')
    assert info.generation_defaults == {"temperature": 1.5, "top_k": 7}
    assert info.eos_token_ids[:2] == (3, 4)
    with pytest.raises(HubError, match=r"^--override-generation-config: top_p is 2"):
        read(model, override_generation_config='{"top_p": 2}')


def test_an_override_without_effect_is_a_note(model: Path) -> None:
    info = read(model, override_generation_config='{"max_new_tokens": 5, "num_beams": 4}')
    assert info.max_new_tokens == 5
    (note,) = info.notes
    assert "num_beams has no effect; the fields are temperature" in note


def test_overrides_that_say_off_are_translated_like_the_file(model: Path) -> None:
    off = {"top_k": -1, "top_p": 0, "repetition_penalty": 0, "eos_token_id": -1}
    info = read(model, override_generation_config=json.dumps(off))
    assert info.generation_defaults == {"temperature": 0.5, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    assert info.notes == ()
