from hypothesis import given
from hypothesis import strategies as st

from kvasir.engine.drafting.ngram_guesses import MAX_INDEXED_NGRAMS, MAX_INDEXED_TOKENS, NgramGuesses
from kvasir.engine.drafting.ngram_index import MAX_VISITED
from runtime.engine.drafting.texts import naive_place, request_with


def naive_guess(text: list[int], shortest: int, longest: int, most: int) -> list[int]:
    """Prompt lookup as its definition has it; a copy that reaches the end of the text goes on in itself."""
    for length in range(longest, shortest - 1, -1):
        if len(text) > length and (end := naive_place(text, length)) is not None:
            grown = list(text)
            for place in range(end + 1, end + 1 + most):
                grown.append(grown[place])
            return grown[len(text) :]
    return []


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=MAX_VISITED),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 6),
)
def test_ngram_guesses_equal_a_naive_lookup(tokens: list[int], shortest: int, more: int, most: int) -> None:
    guesses = NgramGuesses(shortest, shortest + more)
    half = len(tokens) // 2 + 1
    request = request_with(tokens[:half])
    for token in [*tokens[half:], None]:
        expected = naive_guess(list(request.token_ids), shortest, shortest + more, most)
        assert list(guesses.guess(request, most)) == expected
        if token is not None:
            request.token_ids.append(token)


def test_ngram_guesses_of_a_resumed_request_are_the_same() -> None:
    prompt, output = [5, 6, 7, 8], [1, 2, 5, 6]
    guesses, grown = NgramGuesses(2, 3), request_with(prompt)
    for token in output:
        guesses.guess(grown, 3)
        grown.token_ids.append(token)
    assert list(guesses.guess(grown, 3)) == [7, 8, 1]
    assert list(guesses.guess(request_with(prompt, output), 3)) == [7, 8, 1]


def test_ngram_guesses_nothing_for_a_short_text() -> None:
    assert list(NgramGuesses(2, 5).guess(request_with([1]), 4)) == []
    assert list(NgramGuesses(2, 5).guess(request_with([1, 1]), 4)) == []


def test_ngram_guesses_the_whole_of_a_repeated_prompt() -> None:
    prompt = list(range(1, 40))
    assert list(NgramGuesses(3, 5).guess(request_with(prompt + prompt[:5]), 34)) == prompt[5:]


def test_ngram_guesses_a_long_prompt_after_some_steps() -> None:
    prompt = [*range(10, MAX_INDEXED_TOKENS + 10), 10, 11, 12]
    guesses, request = NgramGuesses(3, 3), request_with(prompt)
    assert list(guesses.guess(request, 2)) == []
    assert list(guesses.guess(request, 2)) == [13, 14]


def test_ngram_guesses_share_the_work_among_lengths() -> None:
    guesses, request = NgramGuesses(1, 64), request_with(range(1, 5000))
    guesses.guess(request, 2)
    indexed = [index.num_indexed for index in guesses._indexes[request]]
    assert 0 < sum(indexed) <= MAX_INDEXED_NGRAMS


def test_ngram_guesses_forget_an_ended_request() -> None:
    guesses, request = NgramGuesses(1, 1), request_with([1, 2, 1])
    guesses.guess(request, 1)
    guesses.ended(request)
    assert not guesses._indexes
