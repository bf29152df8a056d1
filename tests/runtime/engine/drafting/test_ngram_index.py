import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.engine.drafting.ngram_index import MAX_LOAD, MAX_VISITED, MIN_BUCKETS, NgramIndex
from runtime.engine.drafting.texts import naive_place


def found_by(index: NgramIndex, text: "array[int]") -> int | None:
    return next(index.positions(text, text[-index.length :], before=len(text) - 1), None)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=MAX_VISITED), st.integers(1, 5), st.data())
def test_ngram_index_finds_what_a_search_finds(tokens: list[int], length: int, data: st.DataObject) -> None:
    index, text = NgramIndex(length), array("I")
    while tokens:
        count = data.draw(st.integers(1, len(tokens)))
        text.extend(tokens[:count])
        tokens = tokens[count:]
        index.extend(text, len(text))
        if len(text) >= length:
            assert found_by(index, text) == naive_place(text, length)


def test_ngram_index_finds_places_in_a_long_text() -> None:
    rng, index = random.Random(3), NgramIndex(3)
    text = array("I", (rng.randrange(40) for _ in range(5000)))
    for end in range(len(text) - 60, len(text)):
        while index.num_indexed < end:
            index.extend(text[:end], 700)
        assert found_by(index, text[:end]) == naive_place(text[:end], 3)


def test_ngram_index_starts_again_when_it_is_full() -> None:
    index = NgramIndex(2)
    text = array("I", range(MIN_BUCKETS * MAX_LOAD))
    assert index.extend(text, len(text)) == len(text)
    text.extend([0, 1])
    assert index.extend(text, 100) == 100
    assert index.num_indexed == 100
    index.extend(text, len(text))
    assert found_by(index, text) == 1


def test_ngram_index_ends_a_search_among_equal_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir.engine.drafting.ngram_index.crc32", lambda ngram: 0)
    index, text = NgramIndex(1), array("I", [7, *range(8, 8 + MAX_VISITED)])
    index.extend(text, len(text))
    assert list(index.positions(text, text[1:2], before=len(text))) == [1]
    assert list(index.positions(text, text[:1], before=len(text))) == []
