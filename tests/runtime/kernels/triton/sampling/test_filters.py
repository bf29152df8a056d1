import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvasir.kernels.triton.sampling.float_order import MINUS_INFINITY_KEY, NAN_KEY
from kvasir.kernels.triton.sampling.sampling_kernels import Draw, row_limits
from kvasir.kernels.triton.sampling.sizes import SEARCH_TOKENS

OFF = math.inf
P_ROUNDING = 2e-6
"""Tokens whose probabilities before them are so close to p may stay or go."""


def keys_of(numbers: Tensor) -> Tensor:
    """float_order.py's keys of scaled logits [V], without NaN."""
    bits = (numbers + 0.0).view(torch.int32)
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def kept(logits: Tensor, temperature: float, k: int, p: float, min_p: float) -> list[set[int]]:
    """The tokens that the kernels' limits leave of each row [R, V]. Off: the vocabulary's size, infinite, 0."""
    count = len(logits)
    is_filtered = k < logits.shape[1] or p < 1 or not min_p
    of = Draw(
        rows=torch.arange(count),
        temperature=torch.full((count,), temperature),
        seeds=torch.zeros(count, dtype=torch.int64),
        positions=torch.zeros(count, dtype=torch.int64),
        top_k=torch.full((count,), k) if is_filtered else None,
        top_p=torch.full((count,), p, dtype=torch.float64) if is_filtered else None,
        log_min_p=torch.full((count,), min_p).log() if min_p else None,
    )
    limits = row_limits(logits, of)
    assert limits is not None
    keys = torch.stack([keys_of(row) for row in logits / temperature])
    ids = torch.arange(logits.shape[1])
    limit, last = limits.keys[:, None], limits.ids[:, None]
    stay = (keys > limit) | ((keys == limit) & (ids <= last))
    return [set(row.nonzero()[:, 0].tolist()) for row in stay]


def expected(logits: Tensor, temperature: float, k: int, p: float, min_p: float) -> tuple[set[int], set[int]]:
    """Tokens that stay, and those that may. logits: [V] float32"""
    scaled = (logits / temperature).tolist()
    floor = float((logits / temperature).max() + torch.tensor(min_p).log()) if min_p else -math.inf
    order = sorted((token for token, x in enumerate(scaled) if x >= floor), key=lambda token: -scaled[token])[:k]
    weights = [math.exp(scaled[token] - scaled[order[0]]) for token in order]
    total, before = math.fsum(weights), 0.0
    stay: set[int] = set()
    may: set[int] = set()
    for token, weight in zip(order, weights, strict=True):
        if before / total < p - P_ROUNDING or not stay:
            stay.add(token)
        if before / total < p + P_ROUNDING:
            may.add(token)
        before += weight
    return stay, may


def check(logits: Tensor, temperature: float, k: int, p: float, min_p: float) -> None:
    for row, tokens in zip(logits, kept(logits, temperature, k, p, min_p), strict=True):
        stay, may = expected(row, temperature, k, p, min_p)
        possible = {token for token in may if row[token] > -math.inf} | stay
        assert stay <= tokens | {token for token in stay if row[token] == -math.inf}
        assert {token for token in tokens if row[token] > -math.inf} <= possible


@pytest.mark.parametrize("vocab", [1, 50, SEARCH_TOKENS + 301])
@pytest.mark.parametrize(
    ("k", "p", "min_p"),
    [
        (1, OFF, 0.0),
        (7, OFF, 0.0),
        (10**9, 0.5, 0.0),
        (10**9, 0.999, 0.0),
        (10**9, 1e-300, 0.0),
        (40, 0.8, 0.0),
        (10**9, OFF, 0.1),
        (10**9, OFF, 1.0),
        (5, OFF, 0.01),
        (9, 0.7, 0.02),
    ],
)
def test_filters_leave_the_tokens_of_their_definition(vocab: int, k: int, p: float, min_p: float) -> None:
    logits = torch.randn(2, vocab, generator=torch.Generator().manual_seed(vocab)) * torch.tensor([[3.0], [0.5]])
    check(logits, 0.7, min(k, vocab), p, min_p)


@pytest.mark.parametrize("count", [1, 2, 3, 60, 3000])
def test_equally_likely_tokens_stay_by_their_ids(count: int) -> None:
    """Also if they are far apart, in rows of 3 values only."""
    vocab = 2 * SEARCH_TOKENS + 9
    logits = torch.randint(0, 3, (1, vocab), generator=torch.Generator().manual_seed(count)).float()
    logits[0, :3] = 0.0
    order = logits[0].sort(descending=True, stable=True).indices[:count].tolist()
    assert kept(logits, 1.0, count, OFF, 0.0) == [set(order)]
    flat = torch.zeros(1, vocab)
    assert kept(flat, 1.0, vocab, (count - 0.5) / vocab, 0.0) == [set(range(count))]
    assert kept(flat, 1.0, 4000, (count - 0.5) / 4000, 0.0) == [set(range(count))]


def test_tokens_whose_probabilities_reach_p_exactly_are_enough() -> None:
    """Move it by half a unit of the sums. numpy computes the interpreter's result, to the last bit."""
    weights = [int(x) for x in np.exp(np.array([0.0, -0.5, -1.0], np.float32)) * np.float32(2**40)]
    logits = torch.tensor([[-1.0, 0.0, -0.5]])
    for count, order in enumerate([{1}, {1, 2}, {0, 1, 2}], start=1):
        assert kept(logits, 1.0, 3, (sum(weights[:count]) - 0.5) / sum(weights), 0.0) == [order]


numbers = st.one_of(
    st.integers(-6, 6).map(lambda number: number / 2),
    st.floats(-30, 30, width=32),
    st.sampled_from([0.0, -0.0, -math.inf]),
)


@settings(max_examples=40, deadline=None)
@given(
    row=st.lists(numbers, min_size=1, max_size=14),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.0]),
    k=st.integers(1, 14),
    p=st.one_of(st.just(OFF), st.floats(1e-9, 1, exclude_max=True)),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
)
def test_any_small_row_keeps_the_tokens_of_the_definition(
    row: list[float], temperature: float, k: int, p: float, min_p: float
) -> None:
    logits = torch.tensor([row])
    k = min(k, len(row))
    if logits.max() > -math.inf:
        check(logits, temperature, k, p, min_p)


@pytest.mark.parametrize("most", [math.nan, math.inf])
def test_rows_without_a_finite_maximum_keep_all(most: float) -> None:
    logits = torch.randn(1, 50)
    logits[0, 30] = most
    of = Draw(
        rows=torch.arange(1),
        temperature=torch.ones(1),
        seeds=torch.zeros(1, dtype=torch.int64),
        positions=torch.zeros(1, dtype=torch.int64),
        top_k=torch.tensor([3]),
        top_p=torch.tensor([0.5], dtype=torch.float64),
    )
    limits = row_limits(logits, of)
    assert limits is not None
    assert int(limits.keys[0]) < MINUS_INFINITY_KEY.value
    assert int(limits.ids[0]) == NAN_KEY.value


def test_limits_of_a_row_do_not_depend_on_its_neighbours() -> None:
    logits = torch.randn(3, 700, generator=torch.Generator().manual_seed(3)) * 2
    together = kept(logits, 0.9, 600, 0.95, 0.001)
    assert together == [kept(logits[row : row + 1], 0.9, 600, 0.95, 0.001)[0] for row in range(3)]
