"""Incremental detokenization: one TextStream per request, whose joined deltas equal the text of all tokens."""

import codecs
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Protocol

import tokenizers

from kvasir.client.text.token_bytes import is_byte_level, is_id, token_bytes
from kvasir.hub.tokenizer import Tokenizer

REPLACEMENT: Final = "\ufffd"
# A character has up to 4 bytes, so more tokens than this mean invalid bytes.
MAX_PENDING: Final = 16
# Lengths of the first context to try: of four numbers in a row, one begins at a character.
PROMPT_SUFFIX: Final = (4, 5, 6, 7, 16, 24)
_SHOWN_SETS: Final = 8


class TextStream(Protocol):
    def push(self, token_ids: Sequence[int]) -> str:
        """Return the final text of these tokens; "" within a character."""

    def finish(self) -> str:
        """Return the rest. Incomplete characters become U+FFFD."""


class NoText:
    """A TextStream for outputs without text."""

    def push(self, token_ids: Sequence[int]) -> str:
        return ""

    def finish(self) -> str:
        return ""


class Detokenizer:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._backend = tokenizer.backend
        self._special_ids = tokenizer.special_ids
        self._is_byte_level = is_byte_level(self._backend)
        self.token_bytes = token_bytes(self._backend)
        self._text_bytes = lru_cache(_SHOWN_SETS)(self._text_bytes_with)
        self._added = {id: token.content for id, token in self._backend.get_added_tokens_decoder().items()}

    def stream(
        self,
        prompt_token_ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        shown_special_ids: frozenset[int] = frozenset(),
    ) -> TextStream:
        """Return the stream for a prompt, which decides about a leading space."""
        if self._is_byte_level:
            return _ByteLevelStream(
                self._text_bytes(shown_special_ids) if skip_special_tokens else self.token_bytes
            )
        if skip_special_tokens:
            return _WindowStream(self._backend, self._special_ids - shown_special_ids, prompt_token_ids)
        # byte-level tokenizers write no such space, and skipped tokens need none
        joined = {} if spaces_between_special_tokens else self._added
        return _WindowStream(self._backend, frozenset(), prompt_token_ids, joined)

    def _text_bytes_with(self, shown: frozenset[int]) -> Mapping[int, bytes]:
        return token_bytes(self._backend, skipped=self._special_ids - shown)


# In byte-level tokenizers (GPT-2, Llama 3, Qwen), a token is a fixed string of bytes.
class _ByteLevelStream:
    def __init__(self, token_bytes: Mapping[int, bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Sequence[int]) -> str:
        token_bytes = self._token_bytes
        if len(token_ids) == 1:
            return self._decoder.decode(token_bytes[token_ids[0]])
        return self._decoder.decode(b"".join([token_bytes[token_id] for token_id in token_ids]))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowStream:
    """Decodes tokens after a context, because their text depends on neighbours (as in TGI)."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        skipped: frozenset[int],
        prompt_token_ids: Sequence[int],
        joined: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._backend = backend
        self._skipped = skipped
        self._joined = joined
        self._after_joined = False
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []
        self._set_context_from_prompt(prompt_token_ids)

    def push(self, token_ids: Sequence[int]) -> str:
        # one by one, so that complete text does not wait for the last token
        return "".join([self._push_one(token_id) for token_id in self._with_text(token_ids)])

    def _push_one(self, token_id: int) -> str:
        joins = self._after_joined and token_id in self._joined
        self._after_joined = token_id in self._joined
        self._pending.append(token_id)
        text = self._decode(self._context + self._pending)
        if text.endswith(REPLACEMENT) and len(self._pending) < MAX_PENDING:
            return ""
        delta = self._emit(text)
        return self._joined[token_id] if joins else delta

    def finish(self) -> str:
        return self._emit(self._decode(self._context + self._pending)) if self._pending else ""

    def _emit(self, text: str) -> str:
        if text.startswith(self._context_text):
            delta = text[len(self._context_text) :]
        else:  # invalid bytes changed earlier text, so the context stays
            delta = self._decode(self._pending)
        # Tokens without text cannot be the context: the next token would look like the first and lose its space.
        self._context = self._pending if delta else [*self._context, *self._pending][-MAX_PENDING:]
        self._context_text = self._decode(self._context)
        self._pending = []
        return delta

    def _set_context_from_prompt(self, prompt_token_ids: Sequence[int]) -> None:
        suffix = self._with_text(prompt_token_ids[-PROMPT_SUFFIX[-1] :])
        for length in PROMPT_SUFFIX:
            self._context = suffix[-length:]
            self._context_text = self._decode(self._context)
            if REPLACEMENT not in self._context_text:
                break

    def _with_text(self, token_ids: Sequence[int]) -> list[int]:
        return [i for i in token_ids if is_id(i) and i not in self._skipped]

    def _decode(self, token_ids: list[int]) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=False)
