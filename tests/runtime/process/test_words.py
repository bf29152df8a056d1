"""Numbers and nouns agree."""

import pytest

from kvasir.process.words import count


@pytest.mark.parametrize(("number", "text"), [(0, "0 threads"), (1, "1 thread"), (2, "2 threads")])
def test_a_noun_is_singular_after_one_only(number: int, text: str) -> None:
    assert count(number, "thread") == text
