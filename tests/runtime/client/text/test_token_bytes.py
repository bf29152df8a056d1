"""The bytes of single tokens, of which texts and the log probabilities of an answer are made."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers

from kvasir.client.text.token_bytes import token_bytes
from kvasir.hub.tokenizer import Tokenizer, load_tokenizer
from runtime.client import trained

MAKERS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte level": trained.byte_level,
    "metaspace": trained.metaspace,
    "byte fallback": trained.byte_fallback,
}


@pytest.fixture(scope="module", params=MAKERS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(trained.save(MAKERS[request.param](), tmp_path_factory.mktemp("tokenizer")))


@pytest.mark.parametrize("text", ["The quick brown fox", "again and again, the lazy dog."])
def test_the_bytes_of_a_texts_tokens_joined_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    table = token_bytes(tokenizer.backend)
    joined = b"".join(table[token_id] for token_id in tokenizer.encode(text, add_special_tokens=False))
    # A first word's own token has its space, whether or not the text begins with one.
    assert joined.decode().removeprefix(" ") == text


def test_a_character_in_pieces_has_its_bytes_one_by_one(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(trained.save(trained.byte_fallback(), tmp_path))
    table = token_bytes(tokenizer.backend)
    ids = [trained.token_id(tokenizer.backend, f"<0x{byte:02X}>") for byte in "€".encode()]
    assert [table[token_id] for token_id in ids] == [b"\xe2", b"\x82", b"\xac"]


def test_a_byte_level_token_within_a_character_has_its_own_bytes() -> None:
    backend = trained.byte_level()
    table = token_bytes(backend)
    assert [table[trained.token_id(backend, char)] for char in "æĹ¥"] == [
        b"\xe6",
        b"\x97",
        b"\xa5",
    ]  # GPT-2's alphabet


def test_tokens_of_a_tokenizer_without_a_decoder_are_words() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"the": 0, "dog": 1}))
    table = token_bytes(backend)
    assert [table[0], table[1], table[2]] == [b" the", b" dog", b""]


def test_special_and_added_tokens_are_spelled_unless_skipped(tokenizer: Tokenizer) -> None:
    added = tokenizer.backend.get_added_tokens_decoder()
    table = token_bytes(tokenizer.backend)
    for token_id, token in added.items():
        if token.content != "ÿ":  # the byte 0xFF in the alphabet of byte-level tokenizers, see trained.py
            assert table[token_id] == token.content.encode()
    skipping = token_bytes(tokenizer.backend, skipped=tokenizer.special_ids)
    assert all(skipping[token_id] == b"" for token_id in tokenizer.special_ids)


def test_added_token_outside_of_the_byte_alphabet_is_spelled() -> None:
    """GPT-2's alphabet for bytes ends at U+0143."""
    backend = trained.byte_level()
    backend.add_tokens(["\u0144"])
    assert token_bytes(backend)[trained.token_id(backend, "\u0144")] == "\u0144".encode()


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**32, 2**70])
def test_an_id_that_no_token_has_has_no_bytes_and_is_not_kept(tokenizer: Tokenizer, token_id: int) -> None:
    table = token_bytes(tokenizer.backend)
    assert table[token_id] == b""
    assert token_id not in table
