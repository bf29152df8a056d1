"""Read the files next to tokenizer.json without the tokenizers library.

The rules, including which file wins, are those of transformers 5.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from kvasir.hub.hub_errors import HubError
from kvasir.hub.reading import read_bytes, read_json, read_json_if_any

VOCABULARY_FILES = ("vocab.json", "vocab.txt", "merges.txt", "*.model", "*.tiktoken", "tekken.json")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    "special_tokens_map.json",
    *VOCABULARY_FILES,
)
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class AddedToken:
    # cut out of the text before the tokenizer's model
    content: str
    flags: Mapping[str, bool]


class _ListedToken(msgspec.Struct):
    id: int
    content: str


class _Vocabulary(msgspec.Struct):
    vocab: dict[str, int] | list[list[Any]] = msgspec.field(default_factory=dict)


class _TokenizerJson(msgspec.Struct):
    added_tokens: list[_ListedToken] = msgspec.field(default_factory=list)
    model: _Vocabulary = msgspec.field(default_factory=_Vocabulary)


@dataclass(frozen=True)
class TokenizerConfig:
    values: Mapping[str, Any]
    # bos_token, eos_token, …, and the model's own
    named: Mapping[str, AddedToken]
    extra: tuple[AddedToken, ...]
    # in the order of their ids
    added: tuple[AddedToken, ...]

    @property
    def special_tokens(self) -> dict[str, str]:
        return {name: token.content for name, token in self.named.items()}


def read_tokenizer_config(path: Path) -> TokenizerConfig:
    """Raises HubError."""
    file = path / "tokenizer_config.json"
    values = read_json_if_any(file)
    named, extra = _special_tokens(values, file)
    if "added_tokens_decoder" in values:
        added = _by_id(values["added_tokens_decoder"], file)
    else:
        older = path / "special_tokens_map.json"
        older_named, older_extra = _special_tokens(read_json_if_any(older), older)
        named, extra = named | older_named, extra + older_extra
        special = {token.content for token in (*named.values(), *extra)}
        added = _added_tokens_file(path / "added_tokens.json", special)
    order = [*_NAMED, *named]  # defines the ids of new tokens
    return TokenizerConfig(
        values=MappingProxyType(values),
        named=MappingProxyType({name: named[name] for name in order if name in named}),
        extra=tuple(extra),
        added=tuple(added),
    )


def token_id_of(path: Path, content: str) -> int | None:
    """Return the id of a token in tokenizer.json, or None. Raises HubError."""
    file = path / "tokenizer.json"
    try:
        read = msgspec.json.decode(read_bytes(file), type=_TokenizerJson)
    except msgspec.DecodeError as error:
        raise HubError(f"{file} is not a tokenizer ({error}): download it again") from None
    for token in read.added_tokens:
        if token.content == content:
            return token.id
    vocabulary = read.model.vocab
    if isinstance(vocabulary, dict):
        return vocabulary.get(content)
    return next((index for index, (piece, *_) in enumerate(vocabulary) if piece == content), None)


def tokenizer_info(path: Path, chat_template: str | None) -> dict[str, Any]:
    """Raises HubError."""
    info = {"tokenizer_class": "PreTrainedTokenizerFast", **read_tokenizer_config(path).values}
    info.pop("chat_template", None)
    return info if chat_template is None else info | {"chat_template": chat_template}


def tokenizer_hash(path: Path) -> str:
    """Return 32 hex digits, equal if the same text gives the same tokens."""
    digest = hashlib.sha256()
    for file in sorted({file for pattern in TOKENIZER_FILES for file in path.glob(pattern)}):
        if file.name == "tokenizer_config.json":
            content = canonical_json({key: v for key, v in read_json(file).items() if key != "chat_template"})
        else:
            content = read_bytes(file)
        digest.update(f"{file.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:32]


def canonical_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _special_tokens(values: dict[str, Any], file: Path) -> tuple[dict[str, AddedToken], list[AddedToken]]:
    extra = values.get("extra_special_tokens") or values.get("additional_special_tokens") or []
    named = {key: value for key, value in values.items() if _names_a_token(key, value)}
    if isinstance(extra, dict):
        named |= extra
        extra = []
    if not isinstance(extra, list):
        raise HubError(f"{file}: extra_special_tokens is neither a list nor an object: download it again")
    return (
        {name: _token(value, file, name) for name, value in named.items()},
        [_token(value, file, "extra_special_tokens") for value in extra],
    )


def _names_a_token(key: str, value: Any) -> bool:
    # usual names and a model's own, such as image_token; add_bos_token is a bool
    if key in _NAMED:
        return bool(value)
    return key.endswith("_token") and isinstance(value, str | dict)


def _by_id(decoder: Any, file: Path) -> list[AddedToken]:
    if not isinstance(decoder, dict) or not all(index.isdecimal() for index in decoder):
        raise HubError(f"{file}: added_tokens_decoder is not an object of tokens by id: download it again")
    return [_token(decoder[index], file, "added_tokens_decoder") for index in sorted(decoder, key=int)]


def _added_tokens_file(file: Path, special: set[str]) -> list[AddedToken]:
    # the older added_tokens.json maps tokens to ids
    ids = read_json_if_any(file)
    if not all(isinstance(index, int) for index in ids.values()):
        raise HubError(f"{file} is not an object of ids by token: download it again")
    return [
        AddedToken(content, MappingProxyType({"special": content in special}))
        for content in sorted(ids, key=lambda content: int(ids[content]))
    ]


def _token(value: Any, file: Path, field: str) -> AddedToken:
    if isinstance(value, str):
        return AddedToken(value, MappingProxyType({}))
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise HubError(f"{file}: {field} holds {value!r}, which is not a token: download it again")
    return AddedToken(
        value["content"], MappingProxyType({flag: bool(value[flag]) for flag in _FLAGS if flag in value})
    )
