"""Model directories with small tokenizers of the kinds that models come with, trained on a few lines."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog, again and again.",
    "It's 2024; we've read that 1234567 tokens aren't many. They'll write: don't!",
    "naïve café, Größe, Übermut; ¿qué? 日本語のテキスト 👍🏽",
    "def f(x):\n    return x['a'] + 1  # comment\n\n\tand a tab",
]
TEXTS = [
    "",
    " ",
    "The quick fox",
    "  leading and trailing  ",
    "two\n\nlines\tand a tab",
    "It's naïve: 日本語 👩‍👩‍👧 and 12345!",
    "<s>spelled out</s> and<|user|>inside <|user|> words",
    "an <image> and a  <tool>  call, <TOOL> too",
    "e\u0301 and é, ﬁ, \u00a0 and \u200b, \x00 too",
]
SPECIAL = ["<s>", "</s>", "<unk>", "<|user|>"]


def byte_level() -> tokenizers.Tokenizer:
    """As in Llama 3: byte-level BPE with a begin-of-sequence token, and limits and padding left from training."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _train(tokenizer, trainers.BpeTrainer, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), vocab_size=400)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 0)]),
        ]
    )
    tokenizer.enable_truncation(max_length=4)
    tokenizer.enable_padding(length=6, pad_token="</s>", pad_id=1)
    return tokenizer


def word_piece() -> tokenizers.Tokenizer:
    """As in BERT: lower-cased words, tokens at both ends."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    _train(tokenizer, trainers.WordPieceTrainer, vocab_size=200)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return tokenizer


def unigram() -> tokenizers.Tokenizer:
    """As in T5: a Unigram model whose words begin with the sign for a space."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    _train(tokenizer, trainers.UnigramTrainer, unk_token="<unk>", vocab_size=200)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def bare_byte_level() -> tokenizers.Tokenizer:
    """As in GPT-2: byte-level BPE that adds nothing around a text; no token is special."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def added_tokens() -> tokenizers.Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_tokens(["<image>", AddedToken("<tool>", lstrip=True, rstrip=True, normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<TOOL>", single_word=True)])
    return tokenizer


def _train(tokenizer: tokenizers.Tokenizer, trainer: Any, **options: Any) -> None:
    tokenizer.train_from_iterator(CORPUS * 3, trainer(special_tokens=SPECIAL, show_progress=False, **options))


def save(
    path: Path, tokenizer: tokenizers.Tokenizer, config: dict[str, Any] | None, model_type: str = "llama"
) -> Path:
    """A model's directory as far as its tokenizer goes."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    write_json(path / "config.json", {"model_type": model_type})
    if config is not None:
        write_json(path / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"} | config)
    return path


def save_vocabulary(path: Path, tokenizer: tokenizers.Tokenizer) -> Path:
    """Write the tokenizer as GPT-2 was published: vocab.json and merges.txt, no tokenizer.json."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.model.save(str(path))
    write_json(path / "config.json", {"model_type": "gpt2"})
    return path


def write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value))
