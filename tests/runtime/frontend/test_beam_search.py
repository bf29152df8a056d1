"""The rules of beam search, against a reference that keeps every beam of every step."""

import math
import random
from collections.abc import Sequence

import pytest

from kvasir.frontend.generation.beam_search import BeamSearch, candidates_of
from kvasir.link.protocol import Logprobs

VOCABULARY = 12
END = 3


def next_logprobs(token_ids: Sequence[int], seed: int, sharpness: float = 2.0) -> list[float]:
    """A made-up model: the log probability of each next token."""
    rng = random.Random(f"{seed} {list(token_ids)}")
    logits = [rng.gauss(0, sharpness) for _ in range(VOCABULARY)]
    total = math.log(sum(map(math.exp, logits)))
    return [logit - total for logit in logits]


def top_of(logprobs: Sequence[float], count: int) -> Logprobs:
    """The report of an engine for one token."""
    order = sorted(range(len(logprobs)), key=lambda token_id: -logprobs[token_id])[:count]
    return Logprobs([logprobs[order[0]]], [1], [order], [[logprobs[token_id] for token_id in order]])


def reference(
    width: int, prompt: list[int], max_tokens: int, ends: set[int], penalty: float, seed: int
) -> list[tuple[list[int], float]]:
    """All tokens and scores, without any early end."""
    live: list[tuple[list[int], float]] = [([], 0.0)]
    complete: list[tuple[list[int], float]] = []
    for _ in range(max_tokens):
        following: list[tuple[list[int], float]] = []
        for tokens, total in live:
            logprobs = next_logprobs(prompt + tokens, seed)
            for token_id in top_of(logprobs, candidates_of(width, len(ends))).top_ids[0]:
                one = ([*tokens, token_id], total + logprobs[token_id])
                (complete if token_id in ends else following).append(one)
        live = sorted(following, key=lambda one: -one[1])[:width]
    scored = []
    for tokens, total in complete + live:
        length = len(prompt) + len(tokens) - (tokens[-1] in ends)
        scored.append((tokens, total / length**penalty))
    return sorted(scored, key=lambda one: -one[1])[:width]


def search(
    width: int, prompt: list[int], max_tokens: int, ends: set[int], penalty: float, seed: int
) -> tuple[BeamSearch, int]:
    result, steps = BeamSearch(width, len(prompt), max_tokens, ends, penalty), 0
    while result.live:
        steps += 1
        count = candidates_of(width, len(ends))
        result.advance([top_of(next_logprobs([*prompt, *beam.token_ids], seed), count) for beam in result.live])
    return result, steps


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.5, -1.5])
@pytest.mark.parametrize("ends", [set(), {END}, {END, 5, 7}], ids=["endless", "one", "three"])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_best_beams_are_those_of_the_reference(width: int, ends: set[int], penalty: float) -> None:
    for seed in range(10):
        found, _ = search(width, [1, 2], 7, ends, penalty, seed)
        expected = reference(width, [1, 2], 7, ends, penalty, seed)
        assert [list(beam.token_ids) for beam in found.best] == [tokens for tokens, _ in expected]
        assert [found.score(beam) for beam in found.best] == pytest.approx([score for _, score in expected])
        assert [beam.ended for beam in found.best] == [tokens[-1] in ends for tokens, _ in expected]


def test_one_beam_without_an_end_is_greedy() -> None:
    found, _ = search(1, [1], 20, set(), 1.0, 4)
    tokens: list[int] = []
    for _ in range(20):
        logprobs = next_logprobs([1, *tokens], 4)
        tokens.append(logprobs.index(max(logprobs)))
    assert list(found.best[0].token_ids) == tokens


def test_the_search_ends_when_no_beam_can_become_better() -> None:
    steps = [search(3, [1, 2], 200, {END}, 0.0, seed)[1] for seed in range(10)]
    assert max(steps) < 60, steps


def test_a_beam_has_the_log_probabilities_of_its_tokens() -> None:
    found, _ = search(3, [1, 2], 5, {END}, 1.0, 1)
    for beam in found.best:
        tokens, logprobs = list(beam.token_ids), beam.logprobs()
        assert sum(logprobs.token) == pytest.approx(beam.logprob)
        for index, token_id in enumerate(tokens):
            expected = top_of(next_logprobs([1, 2, *tokens[:index]], 1), 6)
            assert logprobs.top_ids[index] == expected.top_ids[0]
            assert logprobs.top[index] == expected.top[0]
            assert logprobs.token[index] == expected.top[0][expected.top_ids[0].index(token_id)]
            assert logprobs.rank[index] == expected.top_ids[0].index(token_id) + 1


@pytest.mark.parametrize("worthless", [-math.inf, math.nan])
def test_impossible_tokens_are_left_out(worthless: float) -> None:
    search = BeamSearch(3, 1, 5, {END}, 1.0)
    search.advance([Logprobs([-0.5], [1], [[4, END, 6]], [[-0.5, worthless, worthless]])])
    assert [list(beam.token_ids) for beam in search.live] == [[4]]
    assert search.best == []
    search.advance([Logprobs([worthless], [1], [[4, 5]], [[worthless, worthless]])])
    assert (search.live, search.best) == ([], [])
