from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvasir.client.text.detokenizer import MAX_PENDING, Detokenizer
from kvasir.hub.tokenizer import Tokenizer, load_tokenizer
from runtime.client import trained
from runtime.hub import small_tokenizers

MAKERS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte level": trained.byte_level,
    "metaspace": trained.metaspace,
    "byte fallback": trained.byte_fallback,
}
CHARACTERS = st.characters(exclude_categories=["Cs"]) | st.sampled_from(list(" \n" + "".join(trained.CORPUS)))
TEXTS = st.text(CHARACTERS, max_size=40) | st.sampled_from(trained.CORPUS)
SOME_TEXT = st.text(CHARACTERS, min_size=1, max_size=40) | st.sampled_from(trained.CORPUS)
CUTS = st.lists(st.integers(0, 200), max_size=12)


@pytest.fixture(scope="module", params=MAKERS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(request.param, tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load("byte level", tmp_path_factory.mktemp("byte-level"))


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load("byte fallback", tmp_path_factory.mktemp("byte-fallback"))


def load(kind: str, directory: Path) -> Tokenizer:
    return load_tokenizer(trained.save(MAKERS[kind](), directory))


def stream(tokenizer: Tokenizer, prompt: list[int], outputs: list[list[int]]) -> list[str]:
    """Return the deltas of a request; the last one is the text of `finish`."""
    text = Detokenizer(tokenizer).stream(prompt)
    return [*(text.push(token_ids) for token_ids in outputs), text.finish()]


def halves(tokenizer: Tokenizer, token_ids: list[int], prompt_length: int) -> tuple[list[int], list[int]]:
    """A prompt of about this length that ends at a character, and at least one token of output."""
    whole = tokenizer.decode(token_ids)
    length = prompt_length % len(token_ids)
    while not whole.startswith(tokenizer.decode(token_ids[:length])):
        length -= 1
    return token_ids[:length], token_ids[length:]


@given(text=SOME_TEXT, prompt_length=st.integers(0, 40), cuts=CUTS)
@example(text="日本語👩‍👩‍👧Größe", prompt_length=0, cuts=list(range(60)))
@example(
    text="\x80\u0800\u0800\u0800\u0800\u0800", prompt_length=0, cuts=[17]
)  # many tokens at once, cut within a character
@example(
    text="\U00010000" * 6 + "00", prompt_length=26, cuts=[]
)  # 4, 8, 16 and 24 tokens before the output cut one
@settings(deadline=None)
def test_any_split_of_any_text_gives_the_text_of_the_whole(
    tokenizer: Tokenizer, text: str, prompt_length: int, cuts: list[int]
) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    prompt, output = halves(tokenizer, token_ids, prompt_length)
    assert output
    deltas = stream(tokenizer, prompt, list(trained.pieces(output, cuts)))
    assert "".join(deltas) == tokenizer.decode(token_ids)[len(tokenizer.decode(prompt)) :]


@given(text=TEXTS)
@settings(deadline=None)
def test_no_delta_holds_part_of_a_character(tokenizer: Tokenizer, text: str) -> None:
    output = tokenizer.encode(text, add_special_tokens=False)
    if "\ufffd" in tokenizer.decode(output):
        return
    deltas = stream(tokenizer, [], [[token_id] for token_id in output])
    assert not any("\ufffd" in delta for delta in deltas)


@given(token_ids=st.lists(st.integers(-2, 800), max_size=60), cuts=CUTS)
@settings(deadline=None)
def test_byte_level_tokens_without_text_equal_decoding_at_once(
    byte_level: Tokenizer, token_ids: list[int], cuts: list[int]
) -> None:
    deltas = stream(byte_level, [], list(trained.pieces(token_ids, cuts)))
    assert "".join(deltas) == byte_level.decode([token_id for token_id in token_ids if token_id >= 0])


@given(token_ids=st.lists(st.integers(-2, 2**33), max_size=60), prompt=st.lists(st.integers(0, 300), max_size=30))
@settings(deadline=None)
def test_any_ids_give_some_text(tokenizer: Tokenizer, token_ids: list[int], prompt: list[int]) -> None:
    stream(tokenizer, prompt, [[token_id] for token_id in token_ids])


@given(parts=st.lists(st.tuples(TEXTS, st.integers(0, 3)), max_size=4), cuts=CUTS)
@settings(deadline=None)
def test_special_tokens_not_skipped_are_spelled_in_any_split(
    tokenizer: Tokenizer, parts: list[tuple[str, int]], cuts: list[int]
) -> None:
    token_ids = [i for text, special in parts for i in (*tokenizer.encode(text, add_special_tokens=False), special)]
    stream = Detokenizer(tokenizer).stream([], skip_special_tokens=False)
    deltas = [stream.push(piece) for piece in trained.pieces(token_ids, cuts)]
    assert "".join(deltas) + stream.finish() == tokenizer.decode(token_ids, skip_special_tokens=False)


def test_the_first_word_after_a_prompt_keeps_its_space(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("The quick brown", add_special_tokens=False)
    output = tokenizer.encode("The quick brown fox jumps", add_special_tokens=False)[len(prompt) :]
    assert "".join(stream(tokenizer, prompt, [[token_id] for token_id in output])) == " fox jumps"


def test_first_word_after_a_prompt_of_one_token_keeps_its_space(byte_fallback: Tokenizer) -> None:
    the = trained.token_id(byte_fallback.backend, "▁the")
    assert "".join(stream(byte_fallback, [the], [[the]])) == " the"


def test_a_character_after_a_prompt_of_byte_tokens_is_whole(byte_fallback: Tokenizer) -> None:
    """Each character is three tokens, so only the longest end of the prompt begins at a character."""
    prompt = [trained.token_id(byte_fallback.backend, f"<0x{byte:02X}>") for byte in "語".encode() * 10]
    assert "".join(stream(byte_fallback, prompt, [[token_id] for token_id in prompt[:3]])) == "語"


def test_first_word_without_text_before_it_has_no_space(byte_fallback: Tokenizer) -> None:
    special = trained.token_id(byte_fallback.backend, "<|assistant|>")
    output = byte_fallback.encode("the dog", add_special_tokens=False)
    assert "".join(stream(byte_fallback, [special], [output])) == "the dog"


def test_an_id_without_text_leaves_the_next_word_its_space(byte_fallback: Tokenizer) -> None:
    the, missing = trained.token_id(byte_fallback.backend, "▁the"), 10**6
    for outputs in ([[the], [missing], [the]], [[missing], [the], [missing], [missing], [the]]):
        assert "".join(stream(byte_fallback, [], outputs)) == "the the"


def test_shown_special_tokens_are_spelled_out_and_others_skipped(tokenizer: Tokenizer) -> None:
    """A parser of the output needs the marks of its format, and the client none of the other special tokens."""
    shown, skipped = (trained.token_id(tokenizer.backend, token) for token in ("<|user|>", "</s>"))
    detokenizer = Detokenizer(tokenizer)
    word = tokenizer.encode("dog", add_special_tokens=False)
    output = [*word, skipped, shown, skipped]
    for ids, text in ((frozenset({shown}), "<|user|>"), (frozenset[int](), "")):
        stream = detokenizer.stream([], shown_special_ids=ids)
        deltas = [stream.push([token_id]) for token_id in output]
        assert ("".join(deltas) + stream.finish()).replace(" ", "") == "dog" + text


def test_special_tokens_give_no_text_and_do_not_split_characters(tokenizer: Tokenizer) -> None:
    special = trained.token_id(tokenizer.backend, "</s>")
    output = tokenizer.encode("naïve 日本", add_special_tokens=False)
    with_special = [token_id for each in output for token_id in (special, each)]
    assert "".join(stream(tokenizer, [], [[i] for i in with_special])) == tokenizer.decode(output)


def test_incomplete_character_appears_at_the_end_of_the_request(byte_level: Tokenizer) -> None:
    first_byte = trained.token_id(byte_level.backend, "æ")  # 0xE6 in GPT-2's alphabet
    assert stream(byte_level, [], [[first_byte]]) == ["", "\ufffd"]


def test_a_character_after_many_broken_bytes_is_whole(byte_level: Tokenizer) -> None:
    """A stream of bytes needs no window, which would end within the character."""
    broken, *character = (trained.token_id(byte_level.backend, char) for char in "þæĹ¥")  # 0xFE, and 0xE6 0x97 0xA5
    for count in range(MAX_PENDING + 1):
        outputs = [[token_id] for token_id in [*[broken] * count, *character]]
        assert "".join(stream(byte_level, [], outputs)) == "\ufffd" * count + "日"


def test_broken_bytes_that_undo_text_do_not_stop_the_stream(byte_fallback: Tokenizer) -> None:
    def byte(value: int) -> int:
        return trained.token_id(byte_fallback.backend, f"<0x{value:02X}>")

    the = trained.token_id(byte_fallback.backend, "▁the")
    euro = [byte(0xE2), byte(0x82), byte(0xAC)]
    outputs = [[token_id] for token_id in [*euro, byte(0xFF), the, *euro, the]]
    assert "".join(stream(byte_fallback, [], outputs)) == "€\ufffd the€ the"


def test_endless_run_of_broken_bytes_is_decoded_in_small_windows(
    byte_fallback: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = trained.token_id(byte_fallback.backend, "<0xFF>")
    text = Detokenizer(byte_fallback).stream([])
    longest = 0
    decode = text._decode  # type: ignore[attr-defined]

    def measured(token_ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(token_ids))
        return str(decode(token_ids))

    monkeypatch.setattr(text, "_decode", measured)
    deltas = [text.push([broken]) for _ in range(1000)] + [text.finish()]
    assert "".join(deltas) == "\ufffd" * 1000
    assert longest <= 2 * MAX_PENDING


@pytest.fixture(scope="module")
def word_piece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(trained.save(small_tokenizers.word_piece(), tmp_path_factory.mktemp("word-piece")))


def pushed(tokenizer: Tokenizer, token_ids: list[int], skip_special_tokens: bool, spaces_between: bool) -> str:
    stream = Detokenizer(tokenizer).stream([], skip_special_tokens, spaces_between)
    return "".join(stream.push([token_id]) for token_id in token_ids) + stream.finish()


def test_special_tokens_are_joined_without_spaces_if_asked(word_piece: Tokenizer) -> None:
    words = word_piece.encode("the fox", add_special_tokens=False)
    token_ids = [1, 1, *words, 0, 1, 0, *words]
    assert pushed(word_piece, token_ids, False, True) == "</s> </s> the fox <s> </s> <s> the fox"
    assert pushed(word_piece, token_ids, False, False) == "</s></s> the fox <s></s><s> the fox"
    assert pushed(word_piece, token_ids, True, False) == "the fox the fox"


def test_joined_tokens_keep_the_text_before_them(byte_fallback: Tokenizer) -> None:
    special = trained.token_id(byte_fallback.backend, "</s>")
    half = byte_fallback.encode("日", add_special_tokens=False)[-3:-1]  # two of three bytes
    assert pushed(byte_fallback, [special, *half, special], False, False).startswith("</s>\ufffd")


def test_joining_changes_nothing_where_there_are_no_spaces(byte_level: Tokenizer) -> None:
    special = trained.token_id(byte_level.backend, "</s>")
    assert pushed(byte_level, [special, special], False, False) == "</s></s>"
    assert pushed(byte_level, [special, special], False, True) == "</s></s>"
