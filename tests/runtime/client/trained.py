"""Small tokenizers of the kinds that models come with, trained on a few lines, and a model's facts around one."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from kvasir.hub.model_info import ModelInfo

CORPUS = [
    "The quick brown fox jumps over the lazy dog, again and again and again.",
    "  two leading spaces,   three inside\tand a tab\n\nand lines  ",
    "naïve café — déjà vu; Größe, Übermut; ¿qué?",
    "日本語のテキスト、漢字とかな。日本語日本語",
    "👩‍👩‍👧 family 👍🏽 thumbs 🇩🇪 flag 👍🏽👍🏽",
    "def f(x):\n    return x['a'] + 1  # comment",
]
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]


def token_id(tokenizer: tokenizers.Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return found


def byte_level() -> tokenizers.Tokenizer:
    """Return a tokenizer like GPT-2's and Qwen's: merges run across bytes of characters and across characters."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS * 3,
        trainers.BpeTrainer(
            vocab_size=600,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=SPECIAL,
            show_progress=False,
        ),
    )
    # The library takes the letters of an added token for bytes where it can: "ÿ" decodes to a broken character.
    tokenizer.add_tokens(["<think>", " added with spaces ", "<｜日本｜>", "ÿ"])
    return tokenizer


def metaspace() -> tokenizers.Tokenizer:
    """Return a tokenizer like that of T5: a Unigram model whose words begin with the sign for a space."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        CORPUS * 3,
        trainers.UnigramTrainer(
            vocab_size=300, special_tokens=[*SPECIAL, "<unk>"], unk_token="<unk>", show_progress=False
        ),
    )
    return tokenizer


def byte_fallback() -> tokenizers.Tokenizer:
    """Return a tokenizer like those of Llama 2 and Gemma: a character without a token has one per byte."""
    base = [*SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    letters = sorted({char for line in CORPUS[:1] for char in line if char != " "})
    tokens = [*base, *letters, "▁t", "▁th", "▁the", "an", "in"]
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("a", "n"), ("i", "n")]
    tokenizer = tokenizers.Tokenizer(
        models.BPE({token: i for i, token in enumerate(tokens)}, merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def save(tokenizer: tokenizers.Tokenizer, directory: Path) -> Path:
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def model_info(**changes: object) -> ModelInfo:
    facts: dict[str, object] = {
        "path": Path("/nowhere"),
        "architecture": "LlamaForCausalLM",
        "config": {},
        "dtype": "float32",
        "max_model_len": 128,
        "vocab_size": 700,
        "width": 64,
        "eos_token_ids": (1,),
        "generation_defaults": {},
        "fingerprint": "f" * 32,
        "tokenizer_hash": "t" * 32,
    }
    return ModelInfo(**(facts | changes))  # type: ignore[arg-type]


def pieces(token_ids: list[int], cuts: list[int]) -> Iterator[list[int]]:
    bounds = [0, *sorted({cut % (len(token_ids) + 1) for cut in cuts}), len(token_ids)]
    for start, end in itertools.pairwise(bounds):
        yield token_ids[start:end]
