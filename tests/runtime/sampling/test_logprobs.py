import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvasir.sampling import token_logprobs as logprobs
from kvasir.sampling.token_logprobs import PromptScores, score


def logits_of(rows: int, vocab: int) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(5)) * 3


def ranked(row: list[float]) -> list[int]:
    """Reference: the tokens from the most to the least likely, equal ones by their ids."""
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


def test_values_are_those_of_log_softmax() -> None:
    logits = logits_of(9, 400)
    tokens = torch.arange(9) * 40
    expected = logits.double().log_softmax(-1).numpy()
    scores = score(logits, tokens, 5)
    np.testing.assert_allclose(scores.token, expected[range(9), tokens], rtol=0, atol=1e-5)
    np.testing.assert_allclose(scores.top, np.take_along_axis(expected, scores.top_ids, 1), rtol=0, atol=1e-5)


@given(
    rows=st.lists(st.lists(st.integers(0, 4), min_size=12, max_size=12), min_size=1, max_size=5),
    token=st.integers(0, 11),
    k=st.integers(0, 15),
)
@settings(deadline=None)
def test_rank_and_most_likely_tokens_with_many_ties(rows: list[list[float]], token: int, k: int) -> None:
    """k goes beyond the vocabulary too: then all of it is reported."""
    scores = score(torch.tensor(rows, dtype=torch.float32), torch.full((len(rows),), token), k)
    assert scores.rank.tolist() == [sum(value >= row[token] for value in row) for row in rows]
    assert scores.top_ids.tolist() == [ranked(row)[:k] for row in rows]


def test_ties_in_bfloat16_in_a_large_vocabulary() -> None:
    logits = logits_of(20, 5000).bfloat16()
    scores = score(logits, torch.zeros(20, dtype=torch.int64), 20)
    assert scores.top_ids.tolist() == [ranked(row)[:20] for row in logits.tolist()]


def test_a_row_scores_the_same_alone_and_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, tokens = logits_of(30, 700), torch.arange(30)
    crowd = score(logits, tokens, 20)
    monkeypatch.setattr(logprobs, "_AT_ONCE", 4 * 700)
    in_pieces = score(logits, tokens, 20)
    for row in range(30):
        alone = score(logits[row : row + 1], tokens[row : row + 1], 3).wire(0, 1, 3)
        assert crowd.wire(row, row + 1, 3) == alone
        assert in_pieces.wire(row, row + 1, 3) == alone


def test_a_token_that_is_certain_has_probability_one() -> None:
    logits = torch.tensor([[-1e4, 0.0, -1e4]])
    wire = score(logits, torch.tensor([1]), 1).wire(0, 1, 1)
    assert (wire.token, wire.rank, wire.top_ids, wire.top) == ([0.0], [1], [[1]], [[0.0]])


def test_a_prompt_is_told_in_the_order_of_its_chunks() -> None:
    logits, tokens = logits_of(10, 50), torch.arange(10)
    whole, chunked = PromptScores(2), PromptScores(2)
    whole.append(score(logits, tokens, 2))
    for part in (slice(0, 3), slice(3, 4), slice(4, 10)):
        chunked.append(score(logits[part], tokens[part], 2))
    assert chunked.count == 10
    assert chunked.wire() == whole.wire()
    assert PromptScores(2).wire().token == []


def test_a_prompt_gets_as_many_likely_tokens_as_it_asks_for() -> None:
    """Rows of one step are scored together, for the row that asks for most."""
    logits, tokens = logits_of(10, 50), torch.arange(10)
    asks = PromptScores(2)
    asks.append(score(logits, tokens, 5))
    wire = asks.wire()
    assert wire == score(logits, tokens, 2).wire(0, 10, 2)
    assert {len(ids) for ids in wire.top_ids} == {len(values) for values in wire.top} == {2}
