"""How byte-level vocabularies of GGUF files split text into words, by the name in tokenizer.ggml.pre."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

BYTE_LEVEL: Final = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDINGS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)
_LLAMA3: Final = rf"{_ENDINGS}|{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2: Final = rf"{_ENDINGS}|{_WORDS}|\p{{N}}|{_SIGNS}|{_SPACES}"
_TEKKEN: Final = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_GPT4O: Final = (
    rf"{_CASED[0]}{_ENDINGS}?|{_CASED[1]}{_ENDINGS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_CHINESE: Final = "[一-龥\u0800-一가-\ud7ff]+"
_DEEPSEEK_V3: Final = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)


@dataclass(frozen=True)
class WordSplits:
    # Each pattern splits what the one before left.
    patterns: tuple[str, ...]
    add_bos: bool = False  # without tokenizer.ggml.add_bos_token
    # A word that is a token stays one, whatever the merges say.
    whole_words: bool = False
    composed: bool = False  # text is normalised to NFC

    def pre_tokenizer(self) -> dict[str, Any]:
        splits = [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in self.patterns
        ]
        return {"type": "Sequence", "pretokenizers": [*splits, BYTE_LEVEL]}


_OF_GPT2: Final = WordSplits((_GPT2,))
_OF_LLAMA3: Final = WordSplits((_LLAMA3,), add_bos=True, whole_words=True)
_OF_QWEN2: Final = WordSplits((_QWEN2,))
_DIGITS: Final = WordSplits((r"\p{N}", _GPT2))
_OF_GPT4O: Final = WordSplits((_GPT4O,))

SPLITS: Final[Mapping[str, WordSplits]] = MappingProxyType(
    {
        **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "jais", "trillion", "granite-docling"), _OF_GPT2),
        **dict.fromkeys(
            ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _OF_LLAMA3
        ),
        **dict.fromkeys(("dbrx", "smaug-bpe"), WordSplits((_LLAMA3,))),
        **dict.fromkeys(("qwen2", "megrez"), WordSplits((_QWEN2,), composed=True)),
        **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "hunyuan", "kormo"), _OF_QWEN2),
        **dict.fromkeys(
            ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), _DIGITS
        ),
        **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _OF_GPT4O),
        "tekken": WordSplits((_TEKKEN,), add_bos=True, whole_words=True),
        "deepseek-coder": WordSplits((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE, r"\p{N}")),
        "deepseek-v3": WordSplits(_DEEPSEEK_V3),
        "falcon": WordSplits((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
        "default": WordSplits((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    }
)
