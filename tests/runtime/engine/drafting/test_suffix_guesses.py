from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kvasir.engine.drafting.suffix_guesses import (
    MAX_PLACES,
    SHORTEST_MATCH,
    SuffixGuesses,
    SuffixLimits,
)
from kvasir.request.adapter import Adapter
from runtime.engine.drafting.texts import request_with

LIMITS = SuffixLimits(longest_match=24, tokens_per_matched=1.0, min_probability=0.1, max_outputs=100)


def after(*outputs: Sequence[int], cache_salt: str = "", limits: SuffixLimits = LIMITS) -> SuffixGuesses:
    guesses = SuffixGuesses(limits)
    for output in outputs:
        guesses.ended(request_with([99], output, cache_salt))
    return guesses


def naive_guess(text: list[int], past: list[list[int]], most: int) -> list[int]:
    """Continue the longest suffix that stands elsewhere by the most frequent followers."""
    texts = [text, *reversed(past)]
    for length in range(min(len(text), LIMITS.longest_match), SHORTEST_MATCH - 1, -1):
        suffix = text[-length:]
        places = [
            (each, end)
            for each in texts
            for end in range(len(each) - 1 - (each is text), length - 2, -1)
            if each[end + 1 - length : end + 1] == suffix
        ]
        if places:
            return continued(places, min(most, length), len(places))
    return []


def continued(places: list[tuple[list[int], int]], most: int, total: int) -> list[int]:
    nexts = [each[end + 1] for each, end in places if end + 1 < len(each)]
    if not most or not nexts:
        return []
    token = max(nexts, key=nexts.count)  # the first of equally frequent ones
    if nexts.count(token) < LIMITS.min_probability * total:
        return []
    rest = [(each, end + 1) for each, end in places if end + 1 < len(each) and each[end + 1] == token]
    return [token, *continued(rest, most - 1, total)]


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=MAX_PLACES),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=3),
    st.integers(1, 6),
)
def test_suffix_guesses_equal_a_naive_search(text: list[int], past: list[list[int]], most: int) -> None:
    guesses = after(*past)
    assert list(guesses.guess(request_with(text), most)) == naive_guess(text, past, most)


def test_suffix_guesses_the_rest_of_an_earlier_output() -> None:
    assert list(after([1, 2, 3, 4, 5, 6]).guess(request_with([1, 2, 3]), 5)) == [4, 5, 6]


def test_suffix_guesses_ignore_outputs_with_another_salt() -> None:
    guesses = after([1, 2, 3, 4], cache_salt="theirs")
    assert list(guesses.guess(request_with([1, 2, 3], cache_salt="ours"), 5)) == []
    assert list(guesses.guess(request_with([1, 2, 3], cache_salt="theirs"), 5)) == [4]


def test_suffix_guesses_ignore_outputs_of_another_adapter() -> None:
    theirs, ours = Adapter("a", "digest of a", "a"), Adapter("b", "digest of b", "b")
    guesses = SuffixGuesses(LIMITS)
    guesses.ended(request_with([99], [1, 2, 3, 4], adapter=theirs))
    assert list(guesses.guess(request_with([1, 2, 3], adapter=ours), 5)) == []
    assert list(guesses.guess(request_with([1, 2, 3]), 5)) == []
    assert list(guesses.guess(request_with([1, 2, 3], adapter=theirs), 5)) == [4]


def test_suffix_guesses_as_many_tokens_as_match() -> None:
    past = list(range(40))
    assert list(after(past).guess(request_with(past[:4]), 10)) == past[4:8]
    assert list(after(past).guess(request_with(past[10:16]), 10)) == past[16:22]


def test_suffix_guesses_end_with_an_improbable_path() -> None:
    limits = SuffixLimits(24, 4.0, min_probability=0.6, max_outputs=100)
    guesses = after([1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 3, 7, 8], limits=limits)
    assert list(guesses.guess(request_with([1, 2, 3]), 10)) == [4]
