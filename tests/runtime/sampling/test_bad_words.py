import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.sampling.logit_rules import BadWords

TOKEN = st.integers(0, 3)


def completing(words: list[list[int]], output: list[int]) -> set[int]:
    return set(BadWords(words).completing(np.array(output, np.int32)).tolist())


@given(words=st.lists(st.lists(TOKEN, min_size=1, max_size=5), max_size=8), output=st.lists(TOKEN, max_size=12))
@settings(deadline=None)
def test_exactly_the_tokens_that_would_complete_a_word(words: list[list[int]], output: list[int]) -> None:
    expected = {token for token in range(4) for word in words if [*output, token][-len(word) :] == word}
    assert completing(words, output) == expected


@pytest.mark.parametrize(
    ("output", "found"), [([], {9}), ([1], {9}), ([1, 2], {3, 9}), ([0, 1, 2], {3, 9}), ([1, 2, 3], {9, 1})]
)
def test_words_of_one_and_of_several_tokens(output: list[int], found: set[int]) -> None:
    assert completing([[9], [1, 2, 3], [2, 3, 1]], output) == found
