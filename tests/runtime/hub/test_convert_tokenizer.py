import base64
from pathlib import Path

import pytest
import sentencepiece

from kvasir.hub import convert_tokenizer
from kvasir.hub.hub_errors import HubError
from kvasir.hub.tokenizer import load_tokenizer
from runtime.hub import small_tokenizers as small


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kvasir" / "tokenizers"


def without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the child a transformers that cannot be imported."""
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "transformers.py").write_text("raise ImportError('No module named transformers')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "shadow"))


def test_vocabulary_and_merges_are_converted_once_and_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    original = small.bare_byte_level()
    path = small.save_vocabulary(tmp_path / "gpt2", original)
    before = sorted(path.iterdir())
    converted = load_tokenizer(path)
    theirs = AutoTokenizer.from_pretrained(path)
    assert converted.eos_token == theirs.eos_token == "<|endoftext|>"
    for text in small.TEXTS:
        assert converted.encode(text, True) == theirs.encode(text)
    assert sorted(path.iterdir()) == before

    (kept,) = cache.iterdir()
    assert (kept / "tokenizer.json").exists()
    without_transformers(tmp_path, monkeypatch)
    assert load_tokenizer(path).encode("The quick", True) == converted.encode("The quick", True)
    with (path / "merges.txt").open("a") as merges:
        merges.write("q z\n")
    with pytest.raises(HubError, match="transformers, which could make one, is not installed"):
        load_tokenizer(path)


def test_missing_transformers_error_names_the_next_step(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small.save_vocabulary(tmp_path / "gpt2", small.bare_byte_level())
    without_transformers(tmp_path, monkeypatch)
    with pytest.raises(HubError) as missing:
        load_tokenizer(path)
    for part in (str(path), "No module named transformers", "install it, or", "put the tokenizer.json next to"):
        assert part in str(missing.value)
    assert list(cache.iterdir()) == []


def test_an_unreadable_vocabulary_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "transformers.py").write_text(
        "class AutoTokenizer:\n"
        "    def from_pretrained(path, **_):\n"
        "        raise ValueError('bad\\nvocabulary in ' + path)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "shadow"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.model").write_bytes(b"garbage")
    with pytest.raises(HubError, match=rf"could not make one \(ValueError: bad vocabulary in {tmp_path}/model\)"):
        load_tokenizer(tmp_path / "model")


def test_a_vocabulary_of_sentencepiece_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "model"
    path.mkdir()
    text = (f"a small text about tokens {number}" for number in range(100))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=text, model_prefix=str(path / "tokenizer"), vocab_size=60, model_type="bpe", minloglevel=3
    )
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer", "eos_token": "</s>"}')
    tokenizer = load_tokenizer(path)
    assert tokenizer.decode(tokenizer.encode("a small text", add_special_tokens=False)) == "a small text"


def test_a_vocabulary_of_tiktoken_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "model"
    path.mkdir()
    pieces = [*(bytes([value]) for value in range(256)), b"he", b"ll", b"hell"]
    lines = [f"{base64.b64encode(piece).decode()} {rank}" for rank, piece in enumerate(pieces)]
    (path / "tokenizer.model").write_text("\n".join(lines) + "\n")
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    assert load_tokenizer(path).encode("hello", add_special_tokens=False) == [258, ord("o")]


def test_libraries_that_a_conversion_lacks_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(convert_tokenizer, "find_spec", lambda name: None)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.model").write_bytes(b"garbage")
    with pytest.raises(HubError, match="pip install sentencepiece tiktoken, or make one where transformers"):
        load_tokenizer(tmp_path / "model")


def test_model_without_any_vocabulary_has_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(HubError, match=r"holds no tokenizer: neither tokenizer\.json nor a vocabulary"):
        load_tokenizer(tmp_path / "model")


def test_cache_that_cannot_be_written_is_told_with_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small.save_vocabulary(tmp_path / "gpt2", small.bare_byte_level())
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(HubError, match=r"cannot be written .* set XDG_CACHE_HOME to a writable directory"):
        load_tokenizer(path)
