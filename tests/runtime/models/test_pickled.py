import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from kvasir.hub.weights import tensor_bytes, weight_files
from kvasir.hub.weights_identity import weights_identity
from kvasir.models.model_load_error import ModelLoadError
from runtime.models.tiny import gpt2, llama, save
from runtime.worker.driver import Driver, greedy


def tokens(path: Path, seen: Callable[[int, int], None] = lambda done, total: None) -> list[int]:
    driver = Driver.load(path, seen)
    driver.add("r", list(range(2, 32)), greedy(8))
    return driver.run()["r"]


def pickled(path: Path, model: PreTrainedModel, files: int = 1, **options: Any) -> Path:
    """Save a model as transformers did before safetensors, in one file or more with an index."""
    model.save_pretrained(path)
    (path / "model.safetensors").unlink()
    state = model.state_dict()
    if files == 1:
        torch.save(state, path / "pytorch_model.bin", **options)
        return path
    names = {key: f"pytorch_model-0000{place % files + 1}-of-0000{files}.bin" for place, key in enumerate(state)}
    for name in set(names.values()):
        torch.save({key: state[key] for key in state if names[key] == name}, path / name)
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": names}))
    return path


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("build", [lambda: llama(tie_word_embeddings=True), gpt2])
def test_pickled_weights_give_the_tokens_of_safetensors(
    build: Callable[[], PreTrainedModel], files: int, tmp_path: Path
) -> None:
    model = build()
    expected = tokens(save(model, tmp_path / "safetensors"))
    path = pickled(tmp_path / "pickled", model, files)
    seen: list[tuple[int, int]] = []
    assert tokens(path, lambda done, total: seen.append((done, total))) == expected
    assert seen[-1][0] == seen[-1][1] == tensor_bytes(weight_files(path))
    assert all(done <= total for done, total in seen)
    assert len(weights_identity(path)) == 32


def test_pickled_weights_of_old_torch_are_read(tmp_path: Path) -> None:
    model = llama()
    expected = tokens(save(model, tmp_path / "safetensors"))
    assert tokens(pickled(tmp_path / "old", model, _use_new_zipfile_serialization=False)) == expected


class Runs:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch ran",)


def test_pickled_code_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = pickled(tmp_path / "pickled", llama())
    torch.save({"model.norm.weight": Runs()}, path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="holds more than tensors and is not loaded") as refused:
        tokens(path)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"junk" * 100])
def test_pickled_file_that_is_broken_is_named(tmp_path: Path, content: bytes) -> None:
    path = pickled(tmp_path / "pickled", llama())
    (path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin (cannot be read|holds more)"):
        tokens(path)
