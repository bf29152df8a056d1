"""Encode a prompt so that special tokens in messages stay text, and those of the template are tokens.

Messages are marked before rendering. Then the template's special tokens get private names, which occur in no text,
and a tokenizer with only these names reads the prompt.
"""

import re
from collections.abc import Set
from typing import Any, Final

import msgspec
import tokenizers

from kvasir.grammar_bounds.special_names import private_name
from kvasir.hub.tokenizer import Tokenizer

_QUOTE: Final = "\ufdd1"
# Unicode reserves these code points for use inside programs; texts lose them.
_MARKS: Final = str.maketrans("", "", "\ufdd0\ufdd1")


class QuotedTokens:
    """A second tokenizer with the same ids. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        described = msgspec.json.decode(tokenizer.backend.to_str())
        names = {token["content"] for token in described["added_tokens"] if token["special"]}
        names -= _merged(described["model"])
        longest_first = sorted(filter(None, names), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        private = tokenizers.Tokenizer.from_str(with_private_names(described, names))
        self._tokenizer = Tokenizer(private, tokenizer.bos_token, tokenizer.eos_token)

    def quoted(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._special.sub(lambda found: found[0][0] + _QUOTE + found[0][1:], value.translate(_MARKS))
        if isinstance(value, list):
            return [self.quoted(each) for each in value]
        if isinstance(value, dict):
            return {name: self.quoted(each) for name, each in value.items()}
        return value

    def encode(self, text: str, add_special_tokens: bool, keep: int | None) -> list[int]:
        """Encode a prompt with texts from `quoted`. See `Tokenizer.encode`."""
        text = self._special.sub(lambda found: private_name(found[0]), text).replace(_QUOTE, "")
        return self._tokenizer.encode(text, add_special_tokens, keep)


def with_private_names(described: dict[str, Any], names: Set[str]) -> str:
    """Rename these tokens in a tokenizer.json (`described`, which is changed). All ids stay."""
    model = described["model"]
    renamed = names - _merged(model)
    for token in described["added_tokens"]:
        if token["content"] in renamed:
            token["content"] = private_name(token["content"])
    if isinstance(entries := model["vocab"], dict):
        model["vocab"] = {private_name(name) if name in renamed else name: place for name, place in entries.items()}
    else:
        model["vocab"] = [[private_name(name) if name in renamed else name, score] for name, score in entries]
    if (unknown := model.get("unk_token")) in renamed:
        model["unk_token"] = private_name(unknown)
    return msgspec.json.encode(described).decode()


def _merged(model: dict[str, Any]) -> set[str]:
    # the model may name tokens and their parts in its merges
    prefix = len(model.get("continuing_subword_prefix") or "")
    return {name for left, right in model.get("merges", ()) for name in (left, right, left + right[prefix:])}
