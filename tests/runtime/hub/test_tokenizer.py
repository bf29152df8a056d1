from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from kvasir.hub.hub_errors import HubError
from kvasir.hub.source import fetch
from kvasir.hub.tokenizer import load_tokenizer
from runtime.hub import small_tokenizers as small
from runtime.hub.small_tokenizers import TEXTS

STRINGS = {"bos_token": "<s>", "eos_token": "</s>"}
OBJECTS = {
    "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False, "normalized": True, "rstrip": False},
    "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False, "normalized": True, "rstrip": False},
}
MORE_TOKENS = {
    "added_tokens_decoder": {
        "400": {"content": "<image>", "lstrip": False, "rstrip": False, "normalized": False, "special": False},
        "401": {"content": "<TOOL>", "lstrip": True, "rstrip": True, "normalized": False, "special": True},
    },
    "pad_token": "<pad>",
    "image_token": "<image>",
    "extra_special_tokens": ["<tool>"],
}

CASES: dict[str, tuple[Callable[[], tokenizers.Tokenizer], dict[str, Any] | None]] = {
    "byte-level": (small.byte_level, STRINGS),
    "word-piece": (small.word_piece, STRINGS),
    "unigram": (small.unigram, STRINGS),
    "adds nothing": (small.bare_byte_level, {"eos_token": "</s>"}),
    "tokens as objects": (small.byte_level, OBJECTS),
    "added tokens of all sorts": (small.added_tokens, STRINGS),
    "tokens that tokenizer.json has not": (small.byte_level, STRINGS | MORE_TOKENS),
    "older name of extra tokens": (
        small.byte_level,
        STRINGS | {"additional_special_tokens": ["<tool>", "<image>"]},
    ),
    "named tokens of the model's own": (
        small.byte_level,
        STRINGS | {"extra_special_tokens": {"x_token": "<tool>"}},
    ),
    "tokenizer.json decides about bos and eos": (
        small.byte_level,
        STRINGS | {"add_bos_token": False, "add_eos_token": True},
    ),
    "special tokens are split": (small.byte_level, STRINGS | {"split_special_tokens": True}),
    "no tokenizer_config.json": (small.byte_level, None),
}


def assert_equal_to_transformers(path: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(path)
    ours = load_tokenizer(path)
    assert (ours.bos_token, ours.eos_token) == (theirs.bos_token, theirs.eos_token)
    assert ours.special_ids == {index for index, token in theirs.added_tokens_decoder.items() if token.special}
    assert ours.backend.get_vocab() == theirs.get_vocab()
    for text in TEXTS:
        for add in (True, False):
            ids = ours.encode(text, add)
            assert ids == theirs.encode(text, add_special_tokens=add), (text, add)
            for skip in (True, False):
                assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip), (text, skip)


@pytest.mark.parametrize("case", CASES)
def test_ids_and_text_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    tokenizer, config = CASES[case]
    assert_equal_to_transformers(small.save(tmp_path, tokenizer(), config))


def test_demo_models_ids_are_those_of_transformers() -> None:
    assert_equal_to_transformers(fetch("demo://", weights=False))


def test_older_files_for_special_and_added_tokens_are_read(tmp_path: Path) -> None:
    path = small.save(tmp_path, small.byte_level(), {"bos_token": "<unk>"})
    tokens = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "pad_token": "<tool>",
        "additional_special_tokens": ["<TOOL>"],
    }
    small.write_json(path / "special_tokens_map.json", tokens)
    small.write_json(path / "added_tokens.json", {"<tool>": 401, "<image>": 400})
    assert_equal_to_transformers(path)


def test_special_ids_are_the_special_tokens_only(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small.save(tmp_path, small.added_tokens(), STRINGS))
    texts = {tokenizer.backend.id_to_token(token_id) for token_id in tokenizer.special_ids}
    assert texts == {*small.SPECIAL, "<TOOL>"}


def test_nothing_is_cut_or_padded(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(small.save(tmp_path, small.byte_level(), STRINGS))
    assert tokenizer.decode(tokenizer.encode("a", True), skip_special_tokens=False) == "<s>a"
    long = "The quick brown fox " * 100
    assert tokenizer.decode(tokenizer.encode(long, True)) == long


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("tokenizer.json", "{}", "is not a tokenizer that the tokenizers library reads"),
        ("tokenizer.json", "", "is not a tokenizer that the tokenizers library reads"),
        ("tokenizer_config.json", "[", "is not JSON"),
        ("tokenizer_config.json", '{"bos_token": 7}', "bos_token holds 7, which is not a token"),
        (
            "tokenizer_config.json",
            '{"extra_special_tokens": [7]}',
            "extra_special_tokens holds 7, which is not a token",
        ),
        ("tokenizer_config.json", '{"extra_special_tokens": 7}', "extra_special_tokens is neither"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": "y"}}', "added_tokens_decoder is not an object"),
        ("added_tokens.json", '{"x": "y"}', "is not an object of ids by token"),
    ],
)
def test_broken_file_is_named(tmp_path: Path, file: str, content: str, said: str) -> None:
    path = small.save(tmp_path, small.byte_level(), None)
    (path / file).write_text(content)
    with pytest.raises(HubError, match=rf"{path}/{file}.*{said}.*download it again"):
        load_tokenizer(path)


def test_no_token_stands_for_more_characters_than_the_longest() -> None:
    tokenizer = load_tokenizer(fetch("demo://", weights=False))
    ids = tokenizer.backend.get_vocab().values()
    texts = [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in ids]
    assert 1 < max(map(len, texts)) <= tokenizer.longest_token
