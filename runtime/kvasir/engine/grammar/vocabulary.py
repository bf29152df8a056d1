"""Vocabulary: the bytes of the model's tokens for llguidance, and which are special.

Special tokens are marked so, or end the sequence. Others stand for their text, also added ones such as <tool_call>.
"""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import llguidance
import msgspec
import tokenizers

from kvasir.grammar_bounds.special_names import private_name
from kvasir.hub.chat_templates.quoted_tokens import with_private_names
from kvasir.hub.hub_errors import HubError
from kvasir.hub.tokenizer import load_tokenizer


class VocabularyError(Exception):
    """Grammars are not possible with this model."""


class Vocabulary(msgspec.Struct, frozen=True, array_like=True):
    text: str
    size: int  # the larger one of model and tokenizer
    eos_token_ids: tuple[int, ...]


def read_vocabulary(path: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> Vocabulary:
    eos = tuple(token for token in eos_token_ids if token < vocab_size)
    if not eos:
        raise VocabularyError(
            "structured output needs a token that ends the output, and this model names none: set eos_token_id in "
            "its generation_config.json"
        )
    try:
        backend = load_tokenizer(path).backend
    except HubError as error:
        raise VocabularyError(str(error)) from None
    return Vocabulary(backend.to_str(), max(vocab_size, _known(backend)), eos)


def build_tokenizer(vocabulary: Vocabulary) -> llguidance.LLTokenizer:
    """Build the prefix tree of the tokens, which takes seconds. Raises VocabularyError."""
    eos = list(vocabulary.eos_token_ids)
    described: dict[str, Any] = msgspec.json.decode(vocabulary.text)
    special = {each["id"]: each["content"] for each in described["added_tokens"] if _is_special(each, eos)}
    text_ids = {each["id"] for each in described["added_tokens"]} - special.keys()
    try:
        reader = llguidance.LLTokenizer(
            _without_special_names(described, set(special.values())),
            n_vocab=vocabulary.size,
            eos_token=eos,
            slices=[],
        )
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise VocabularyError(
            f"structured output is not possible with this model, whose tokens do not stand for bytes: {reason}"
        ) from None
    wrapper = llguidance.TokenizerWrapper(_Tokens(reader, eos, special, text_ids))
    built = llguidance.LLTokenizer(wrapper, eos_token=eos)
    wrapper.tokens = ()  # many objects that only the constructor reads
    return built


class _Tokens:
    """The tokens for llguidance, which would take all added tokens named <...> for special ones."""

    def __init__(
        self, reader: llguidance.LLTokenizer, eos: Sequence[int], special: Mapping[int, str], text_ids: Set[int]
    ) -> None:
        ids = range(reader.vocab_size)
        self._reader = reader
        self._special = {token for token in ids if reader.is_special_token(token)} - text_ids | special.keys()
        names = {token: private_name(name).encode() for token, name in special.items()}
        self.tokens = [names.get(token) or reader.decode_bytes([token]) for token in ids]
        self.special_token_ids = sorted(self._special)
        self.eos_token_id = eos[0]
        self.bos_token_id = None

    def __call__(self, text: bytes) -> list[int]:
        ids: list[int] = self._reader.tokenize_bytes(text)
        if self._special.isdisjoint(ids) and self._reader.decode_bytes(ids) == text:
            return ids
        return list(self._reader.greedy_tokenize(text.decode()))  # normalization changes the text


def _is_special(added: Mapping[str, Any], eos: Sequence[int]) -> bool:
    return bool(added["special"]) or added["id"] in eos


def _without_special_names(described: dict[str, Any], names: Set[str]) -> str:
    # special tokens have no text, and added ones their exact text
    for token in described["added_tokens"]:
        token.update(lstrip=False, rstrip=False, single_word=False, normalized=False)
    return with_private_names(described, names)


def _known(backend: tokenizers.Tokenizer) -> int:
    return 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
