import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from kvasir.hub.chat_templates.chat_template import ChatTemplate
from kvasir.hub.gguf.gguf_file import GGUFHeader
from kvasir.hub.gguf.gguf_metadata import Metadata
from kvasir.hub.gguf.gguf_tokenizer import GGUFVocabulary
from kvasir.hub.hub_errors import HubError
from kvasir.hub.model_info import load_model_info
from kvasir.hub.source import fetch
from kvasir.hub.tokenizer import load_tokenizer
from runtime.gguf_files import finish
from runtime.hub.small_tokenizers import CORPUS

TEXTS = [
    "The quick fox",
    "It's naïve: 日本語 👩‍👩‍👧 and 12345!",
    "two\n\nlines\tand   a tab, DON'T  we'll\r\n",
    "e\u0301 and é, ﬁ, \u00a0 and \u200b, \x00 too",
    "<s>spelled out</s> and<|user|>inside <|user|> words",
    "def f(x):\n    return x['a'] + 1  # 1234567",
]
SPECIAL = ["<unk>", "<s>", "</s>", "<|user|>"]
CONTROL, USER_DEFINED, BYTE = 3, 4, 6


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def trained(tokenizer: tokenizers.Tokenizer, size: int, alphabet: list[str]) -> tokenizers.Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def byte_level() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return trained(tokenizer, 500, pre_tokenizers.ByteLevel.alphabet())


def sentencepiece() -> tokenizers.Tokenizer:
    """As Llama 2's: spaces are signs, and unknown characters become tokens of bytes."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return trained(tokenizer, 300, ["▁"])


def write(
    path: Path, tokenizer: tokenizers.Tokenizer, kind: str, user_defined: tuple[str, ...] = (), **keys: Any
) -> Path:
    vocab = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    types = [2 if token == "<unk>" else CONTROL if token in SPECIAL else 1 for token in vocab]
    writer = gguf.GGUFWriter(path, keys.pop("architecture", "llama"))
    name = writer.arch
    if kind == "llama":
        vocab += [*user_defined, *(f"<0x{byte:02X}>" for byte in range(256))]
        types += [USER_DEFINED] * len(user_defined) + [BYTE] * 256
        writer.add_token_scores([-float(index) for index in range(len(vocab))])
    else:
        merges = json.loads(tokenizer.to_str())["model"]["merges"]
        writer.add_token_merges([" ".join(pair) for pair in merges])
        writer.add_tokenizer_pre(keys.pop("pre", "gpt-2"))
    writer.add_tokenizer_model(kind)
    writer.add_token_list(vocab)
    writer.add_token_types(types)
    for key, token in (("unknown", "<unk>"), ("bos", "<s>"), ("eos", "</s>")):
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", vocab.index(token))
    for key, value in {
        "context_length": 64, "embedding_length": 8, "block_count": 1, "feed_forward_length": 8,
        "attention.head_count": 1,
    }.items():  # fmt: skip
        writer.add_uint32(f"{name}.{key}", value)
    writer.add_float32(f"{name}.attention.layer_norm_rms_epsilon", 1e-5)
    for key, value in keys.items():
        writer.add_key_value(f"tokenizer.{key.replace('__', '.')}", value, *_type_of(value))
    writer.add_tensor("token_embd.weight", np.zeros((len(vocab), 8), np.float32))
    finish(writer)
    return path


def _type_of(value: Any) -> tuple[gguf.GGUFValueType]:
    return (gguf.GGUFValueType.BOOL if isinstance(value, bool) else gguf.GGUFValueType.get_type(value),)


def converted(file: Path) -> Any:
    return load_tokenizer(fetch(f"file://{file}", weights=False))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_gguf_tokenizer_equals_that_of_transformers(kind: str, tmp_path: Path) -> None:
    build = byte_level if kind == "gpt2" else sentencepiece
    file = write(tmp_path / "m.gguf", build(), kind)
    ours, theirs = converted(file), AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    for text in TEXTS:
        if "<s>" in text and kind == "llama":
            continue  # transformers adds no sign for a space after a special token, see the next test
        ids = ours.encode(text, add_special_tokens=True)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_gguf_tokenizer_keeps_the_tokens_of_its_origin(tmp_path: Path) -> None:
    origin = sentencepiece()
    ours = converted(write(tmp_path / "m.gguf", origin, "llama", ggml__add_bos_token=False))
    for text in ("The quick fox", " a space", "<s>spelled out</s> and<|user|>inside <|user|> words"):
        ids = ours.encode(text, add_special_tokens=True)
        assert ids == origin.encode(text).ids


def test_gguf_tokenizer_cuts_user_defined_tokens_first(tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", sentencepiece(), "llama", ("  ", "<think>"), ggml__add_space_prefix=False)
    ours = converted(file)
    ids = ours.encode("fox  fox<think>", add_special_tokens=False)
    tokens = [ours.backend.id_to_token(token_id) for token_id in ids]
    assert tokens.index("  ") == tokens.index("<think>") / 2 - 0.5
    assert ours.decode(ids) == "fox  fox<think>"


@pytest.mark.parametrize(("pre", "adds"), [("gpt-2", False), ("llama-bpe", True), ("qwen2", False)])
@pytest.mark.parametrize("stated", [None, True, False])
def test_gguf_tokenizer_adds_bos_as_llama_cpp(tmp_path: Path, pre: str, adds: bool, stated: bool | None) -> None:
    keys: dict[str, Any] = {} if stated is None else {"ggml__add_bos_token": stated}
    ids = converted(write(tmp_path / "m.gguf", byte_level(), "gpt2", pre=pre, **keys)).encode("fox", True)
    assert (ids[0] == 1) is (adds if stated is None else stated)


def test_gguf_tokenizer_splits_words_by_its_name(tmp_path: Path) -> None:
    words = {
        "gpt-2": ["a", " 1234", "!!", "\n", "\n", "b"],
        "llama-bpe": ["a", " ", "123", "4", "!!\n\n", "b"],
        "qwen2": ["a", " ", "1", "2", "3", "4", "!!\n\n", "b"],
        "smollm": ["a", " ", "1", "2", "3", "4", "!!", "\n", "\n", "b"],
        "tekken": ["a", " ", "1", "2", "3", "4", "!!\n\n", "b"],
        "gpt-4o": ["a", " ", "123", "4", "!!\n\n", "b"],
        "deepseek-v3": ["a", " ", "123", "4", "!!\n\n", "b"],
    }
    tokenizer = byte_level()
    for pre, expected in words.items():
        ours = converted(write(tmp_path / f"{pre}.gguf", tokenizer, "gpt2", pre=pre))
        text = "a 1234!!\n\nb"
        spans = [span for _, span in ours.backend.pre_tokenizer.pre_tokenize_str(text)]
        assert [text[start:end] for start, end in spans] == expected, pre


def test_gguf_file_gives_template_and_ends_of_turns(tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", byte_level(), "gpt2", chat_template="{{ messages }}", ggml__eot_token_id=3)
    info = load_model_info(fetch(f"file://{file}", weights=False))
    assert info.eos_token_ids == (2, 3)
    template = ChatTemplate.load(info.path)
    assert template is not None
    assert template.text == "{{ messages }}"


@pytest.mark.parametrize(
    ("kind", "keys", "said"),
    [("gpt2", {"pre": "of-a-new-model"}, "splits words in the way of-a-new-model"), ("rwkv", {}, "of kind rwkv")],
)
def test_gguf_vocabulary_of_unknown_kind_asks_for_another(
    tmp_path: Path, kind: str, keys: dict[str, Any], said: str
) -> None:
    file = write(tmp_path / "m.gguf", byte_level(), kind, **keys)
    with pytest.raises(HubError, match=rf"m\.gguf: .*{said}.*: give --tokenizer"):
        converted(file)
    assert load_model_info(fetch(f"file://{file}", weights=False)).architecture == "LlamaForCausalLM"


def test_gguf_vocabulary_of_other_types_is_refused() -> None:
    header = GGUFHeader({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": [1, 2]}, (), 0)
    with pytest.raises(HubError, match=r"tokenizer\.ggml\.tokens of the GGUF file is not a list of str"):
        GGUFVocabulary(Metadata(header, "m.gguf"))
