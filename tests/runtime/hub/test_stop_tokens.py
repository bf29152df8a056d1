import json
from pathlib import Path
from typing import Any

import pytest

from kvasir.hub.model_info import load_model_info
from runtime.hub.test_model import info, model


def with_tokenizer(path: Path, eos: Any, **tokenizer: Any) -> Path:
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    return path


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        (None, 2, (2, 9)),
        ({"temperature": 1.0}, [2, 4], (2, 4, 9)),
        ({"eos_token_id": 5}, [2, 5], (5, 2, 9)),
        ({"eos_token_id": [9, 5]}, None, (9, 5)),
        ({"eos_token_id": -1}, None, (9,)),
        (None, -1, (9,)),
        ({"eos_token_id": [-1, 3]}, None, (3, 9)),
        (None, "</s>", (9,)),
    ],
)
def test_stop_tokens_are_the_union_of_all_files(
    tmp_path: Path, generation: dict[str, Any] | None, config: Any, expected: tuple[int, ...]
) -> None:
    path = model(tmp_path, generation, eos_token_id=config)
    with_tokenizer(path, "<|im_end|>", added_tokens=[{"id": 9, "content": "<|im_end|>", "special": True}])
    assert load_model_info(path).eos_token_ids == expected


@pytest.mark.parametrize(
    ("tokenizer", "eos", "expected"),
    [
        ({"model": {"type": "BPE", "vocab": {"a": 0, "</s>": 7}}}, "</s>", (7,)),
        ({"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["</s>", -1.5]]}}, {"content": "</s>"}, (1,)),
        ({"model": {"type": "BPE", "vocab": {"a": 0}}}, "</s>", ()),
        ({"added_tokens": [{"id": 3, "content": "</s>"}]}, None, ()),
        ({"added_tokens": [{"id": 3, "content": "</s>"}], "model": {"vocab": {"</s>": 1}}}, "</s>", (3,)),
        ({"model": 5}, "</s>", ()),
    ],
)
def test_the_tokenizers_end_is_found_where_its_file_has_it(
    tmp_path: Path, tokenizer: dict[str, Any], eos: Any, expected: tuple[int, ...]
) -> None:
    path = with_tokenizer(model(tmp_path, eos_token_id=None), eos, **tokenizer)
    assert load_model_info(path).eos_token_ids == expected


def test_stop_tokens_without_tokenizer_are_those_of_the_config(tmp_path: Path) -> None:
    assert info(tmp_path).eos_token_ids == (2,)
    assert info(tmp_path, {}, eos_token_id=None).eos_token_ids == ()
