"""tekken.json gives the tokens of tiktoken, which Mistral's own library uses."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from tiktoken._educational import bpe_train

from kvasir.hub.hub_errors import HubError
from kvasir.hub.tokenizer import load_tokenizer
from runtime.hub.small_tokenizers import CORPUS, TEXTS

PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = ["<unk>", "<s>", "</s>", "<|user|>", *(f"<SPECIAL_{rank}>" for rank in range(4, 9))]
SIZE = 320


@pytest.fixture(scope="module")
def ranks() -> dict[bytes, int]:
    return bpe_train("\n".join(CORPUS), SIZE, PATTERN, visualise=None)


def write(path: Path, ranks: dict[bytes, int], **changes: Any) -> Path:
    sizes = {"default_vocab_size": SIZE - 4 + len(SPECIAL), "default_num_special_tokens": len(SPECIAL)}
    content = {
        "config": {"pattern": PATTERN, "num_vocab_tokens": SIZE, **sizes},
        "vocab": [{"rank": rank, "token_bytes": base64.b64encode(token).decode()} for token, rank in ranks.items()],
        "special_tokens": [{"rank": rank, "token_str": token} for rank, token in enumerate(SPECIAL[:4])],
    }
    (path / "tekken.json").write_text(json.dumps(content | changes))
    (path / "config.json").write_text("{}")
    return path


def test_tekken_tokens_equal_those_of_tiktoken(
    ranks: dict[bytes, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ours = load_tokenizer(write(tmp_path, ranks))
    kept = {token: rank + len(SPECIAL) for token, rank in ranks.items() if rank < SIZE - 4}
    special = {token: rank for rank, token in enumerate(SPECIAL)}
    theirs = tiktoken.Encoding("t", pat_str=PATTERN, mergeable_ranks=kept, special_tokens=special)
    for text in (*TEXTS, *CORPUS):
        ids = theirs.encode(text, allowed_special="all")
        assert ours.encode(text, add_special_tokens=True) == [1, *ids]
        assert ours.decode(ids, skip_special_tokens=False) == text
    assert (ours.bos_token, ours.eos_token) == ("<s>", "</s>")


@pytest.mark.parametrize("changes", [{"config": {}}, {"vocab": [{"rank": 0}]}, {"vocab": 5}])
def test_tekken_file_that_is_broken_is_named(
    tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(HubError, match=r"tekken\.json is not a vocabulary of Mistral"):
        load_tokenizer(write(tmp_path, {b"a": 0}, **changes))
