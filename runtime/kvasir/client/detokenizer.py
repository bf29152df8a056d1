"""Text from tokens as they come: one TextStream per request, made by the Detokenizer of the model.

The deltas of a stream, joined, are what decoding all its tokens at once gives; no delta holds half a character,
and the work per token does not grow with the length of the output. Two ways lead there:

- byte-level tokenizers (GPT-2, Llama 3, Qwen, ...): each token is a fixed string of bytes, so the text is an
  incremental UTF-8 decoding of them, exact for broken input too;
- all others (Metaspace, byte fallback, WordPiece, ...): a token's text depends on its neighbours, so the new
  tokens are decoded behind a few known ones, and what these alone give is cut off (as in Hugging Face's TGI).
"""

import codecs
import json
from collections.abc import Sequence
from typing import Final, Protocol

import tokenizers

from kvasir.hub.tokenizer import Tokenizer

REPLACEMENT: Final = "\ufffd"
"""Decoders put it where bytes are no UTF-8: at the end of a text it may be a character that is not complete yet."""
MAX_PENDING: Final = 16
"""Tokens held back while they end within a character: by then (a character has 4 bytes) they are truly broken."""
PROMPT_SUFFIX: Final = (4, 8, 16, 24)
"""How many of the prompt's last tokens give the first output token its neighbours: the first that begins and ends
at a character."""


class TextStream(Protocol):
    """The text of one request."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is certain after these tokens; "" while a character is incomplete."""

    def finish(self) -> str:
        """The rest: characters that stay incomplete appear as U+FFFD."""


class Detokenizer:
    """Makes the text streams of one model. Special tokens give no text, nor do ids that no token has."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._backend = tokenizer.backend
        self._special_ids = tokenizer.special_ids
        self._token_bytes = _TokenBytes(self._backend, self._special_ids) if _is_byte_level(self._backend) else None

    def stream(self, prompt_token_ids: Sequence[int]) -> TextStream:
        """The stream of a request with this prompt, whose end decides about a leading space of the output."""
        if self._token_bytes is not None:
            return _ByteLevelStream(self._token_bytes)
        return _WindowStream(self._backend, self._special_ids, prompt_token_ids)


def _is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    decoder = backend.decoder
    return decoder is not None and json.loads(decoder.__getstate__())["type"] == "ByteLevel"


def _is_id(token_id: int) -> bool:
    """What does not fit into 32 bits makes the backend raise; other ids that no token has it leaves out."""
    return 0 <= token_id < 2**32


def _byte_of_char() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 characters stand for their own byte, the other 68 bytes for U+0100..."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


class _TokenBytes(dict[int, bytes]):
    """The bytes of each token id, filled in as ids come up; shared by all streams and bounded by the vocabulary."""

    def __init__(self, backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> None:
        super().__init__()
        self._backend = backend
        self._special_ids = special_ids
        self._byte_of_char = _byte_of_char()

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) if _is_id(token_id) else None
        if token is None:  # not kept: there is no bound on such ids
            return b""
        if token_id in self._special_ids:
            data = b""
        elif all(char in self._byte_of_char for char in token):
            data = bytes(self._byte_of_char[char] for char in token)
        else:  # an added token, stored as plain text
            data = token.encode()
        self[token_id] = data
        return data


class _ByteLevelStream:
    def __init__(self, token_bytes: _TokenBytes) -> None:
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
    """Decodes `context + pending`, both a few tokens long, and cuts off the text of `context`."""

    def __init__(
        self, backend: tokenizers.Tokenizer, special_ids: frozenset[int], prompt_token_ids: Sequence[int]
    ) -> None:
        self._backend = backend
        self._special_ids = special_ids
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []
        self._set_context_from_prompt(prompt_token_ids)

    def push(self, token_ids: Sequence[int]) -> str:
        # One by one, even if several came at once: what the first ones complete is not held back for the last.
        return "".join([self._push_one(token_id) for token_id in self._with_text(token_ids)])

    def _push_one(self, token_id: int) -> str:
        self._pending.append(token_id)
        text = self._decode(self._context + self._pending)
        if text.endswith(REPLACEMENT) and len(self._pending) < MAX_PENDING:
            return ""
        return self._emit(text)

    def finish(self) -> str:
        return self._emit(self._decode(self._context + self._pending)) if self._pending else ""

    def _emit(self, text: str) -> str:
        """The text of the pending tokens, which become the context of what follows."""
        if text.startswith(self._context_text):
            delta = text[len(self._context_text) :]
        else:  # broken bytes that changed the text before them: the context is of no use
            delta = self._decode(self._pending)
        # Tokens without text are no neighbours: a next token that looks like the first would lose its space.
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
        return [i for i in token_ids if _is_id(i) and i not in self._special_ids]

    def _decode(self, token_ids: list[int]) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=False)
