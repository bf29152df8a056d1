"""The bytes of each token. Tables are filled at the first use of an id."""

import json
import re
from collections.abc import Collection

import tokenizers

_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


def is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    return _decoder(backend).get("type") == "ByteLevel"


def is_id(token_id: int) -> bool:
    return 0 <= token_id < 2**32


def token_bytes(backend: tokenizers.Tokenizer, skipped: Collection[int] = ()) -> dict[int, bytes]:
    """Return the table; b"" for `skipped` tokens and ids without a token."""
    kind = _ByteLevelBytes if is_byte_level(backend) else _PieceBytes
    return kind(backend, skipped)


class _TokenBytes(dict[int, bytes]):
    def __init__(self, backend: tokenizers.Tokenizer, skipped: Collection[int]) -> None:
        super().__init__()
        self._backend = backend
        self._skipped = skipped
        self._added = {id: token.content for id, token in backend.get_added_tokens_decoder().items()}

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) if is_id(token_id) else None
        if token is None:  # not stored: such ids are unbounded
            return b""
        data = self[token_id] = b"" if token_id in self._skipped else self._bytes_of(token_id, token)
        return data

    def _bytes_of(self, token_id: int, token: str) -> bytes:
        raise NotImplementedError


class _ByteLevelBytes(_TokenBytes):
    def __init__(self, backend: tokenizers.Tokenizer, skipped: Collection[int]) -> None:
        super().__init__(backend, skipped)
        self._byte_of_char = _byte_of_char()

    def _bytes_of(self, token_id: int, token: str) -> bytes:
        if all(char in self._byte_of_char for char in token):
            return bytes(self._byte_of_char[char] for char in token)
        return token.encode()  # an added token, stored as plain text


class _PieceBytes(_TokenBytes):
    def __init__(self, backend: tokenizers.Tokenizer, skipped: Collection[int]) -> None:
        super().__init__(backend, skipped)
        self._has_byte_tokens = "ByteFallback" in json.dumps(_decoder(backend))

    def _bytes_of(self, token_id: int, token: str) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        if self._has_byte_tokens and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        # decoders drop the space of the first token, so use the second
        one, two = (self._backend.decode([token_id] * n, skip_special_tokens=False) for n in (1, 2))
        return (two.removeprefix(one) if two.startswith(one) else one).encode()


def _decoder(backend: tokenizers.Tokenizer) -> dict[str, object]:
    decoder = backend.decoder
    return {} if decoder is None else dict(json.loads(decoder.__getstate__()))


def _byte_of_char() -> dict[str, int]:
    """Return GPT-2's alphabet: printable Latin-1 for itself, U+0100... for the other 68."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
