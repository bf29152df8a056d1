import dataclasses
import math

import pytest
import torch
from torch import Tensor

from kvasir.sampling import sampler
from kvasir.sampling.random import exponential
from kvasir.sampling.random_rows import RandomRows
from kvasir.sampling.sampler import holds_nan, sample

V = 50


def logits_of(rows: int, vocab: int = V) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1)) * 2


def rows_of(
    count: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    first: int = 0,
) -> RandomRows:
    """Rows first, first + 1, ... with seeds 0, 1, ..."""
    filtered = top_k is not None or top_p is not None
    return RandomRows(
        rows=torch.arange(first, first + count),
        temperature=torch.full((count, 1), temperature),
        seeds=torch.arange(count),
        positions=torch.zeros(count, dtype=torch.int64),
        top_k=torch.full((count, 1), top_k or V) if filtered else None,
        top_p=torch.full((count, 1), top_p or math.inf, dtype=torch.float64) if filtered else None,
        min_p=None if min_p is None else torch.full((count, 1), min_p),
    )


def keep(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, min_p: float | None = None
) -> dict[int, float]:
    """Reference: the probabilities of the tokens that the filters leave, in plain Python."""
    weights = [math.exp(value / temperature) for value in logits.double().tolist()]
    order = sorted(range(len(weights)), key=lambda token: -weights[token])
    order = [token for token in order if weights[token] >= (min_p or 0) * weights[order[0]]][: top_k or None]
    total = sum(weights[token] for token in order)
    kept: dict[int, float] = {}
    for token in order:
        if top_p is not None and sum(kept.values()) >= top_p:
            break
        kept[token] = weights[token] / total
    share = sum(kept.values())
    return {token: probability / share for token, probability in kept.items()}


def test_greedy_rows_take_the_argmax() -> None:
    logits = logits_of(7)
    assert torch.equal(sample(logits, ()), logits.argmax(dim=-1))


def test_greedy_ties_go_to_the_first_token() -> None:
    logits = torch.zeros(2, V)
    logits[:, [7, 9, 30]] = 3.0
    assert sample(logits, ()).tolist() == [7, 7]


def test_bfloat16_logits_are_compared_exactly() -> None:
    logits = logits_of(7).bfloat16()
    assert torch.equal(sample(logits, ()), logits.float().argmax(dim=-1))


Filters = tuple[int | None, float | None, float | None]
FILTERS: list[Filters] = [
    (None, None, None),
    (1, None, None),
    (5, None, None),
    (None, 0.5, None),
    (None, 0.01, None),
    (8, 0.7, None),
    (V, 1.0, None),
    (V, 0.999, None),
    (None, None, 0.1),
    (None, None, 1.0),
    (6, None, 0.02),
    (None, 0.6, 0.05),
    (9, 0.8, 0.05),
]


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_those_of_the_reference(filters: Filters, temperature: float) -> None:
    top_k, top_p, min_p = filters
    count = 20_000
    logits = logits_of(1).expand(count, V)
    expected = keep(logits[0], temperature, top_k, top_p, min_p)
    top_p = None if top_p == 1.0 else top_p
    random = rows_of(count, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    drawn = torch.bincount(sample(logits, (random,)), minlength=V).tolist()
    for token, seen in enumerate(drawn):
        probability = expected.get(token, 0.0)
        spread = math.sqrt(count * probability * (1 - probability))
        assert abs(seen - count * probability) <= 5 * spread + 1, f"token {token}"


@pytest.mark.parametrize("filters", FILTERS)
def test_the_drawn_token_wins_the_race_of_the_reference(filters: Filters) -> None:
    """Row by row, not only in the mean."""
    count = 300
    top_k, top_p, min_p = filters
    logits = logits_of(count)
    random = rows_of(count, top_k=top_k, top_p=top_p, min_p=min_p)
    drawn = sample(logits, (random,)).tolist()
    noise = exponential(random.seeds, random.positions, V).tolist()
    for row in range(count):
        times = {token: noise[row][token] / p for token, p in keep(logits[row], 1.0, *filters).items()}
        assert drawn[row] == min(times, key=times.__getitem__)


def test_rounding_in_the_logits_does_not_change_the_sample() -> None:
    """A request in a crowd has logits that differ in the last bits: 20,000 flat rows, at most one other token."""
    count, vocab = 20_000, 512
    logits = logits_of(count, vocab) / 4
    nearly = logits * (1 + 1e-6 * torch.randn(count, vocab, generator=torch.Generator().manual_seed(2)))
    for random in (rows_of(count), rows_of(count, top_k=vocab)):
        other = int((sample(logits, (random,)) != sample(nearly, (random,))).sum())
        assert other <= 1


def test_rows_of_a_mixed_batch_are_what_each_would_be_alone() -> None:
    logits = logits_of(12)
    plain = rows_of(4, temperature=1.3, first=2)
    filtered = rows_of(4, top_k=6, top_p=0.8, first=7)
    mixed = sample(logits, (plain, filtered))
    assert mixed[:2].tolist() == logits[:2].argmax(dim=-1).tolist()
    assert mixed[[6, 11]].tolist() == logits[[6, 11]].argmax(dim=-1).tolist()
    assert torch.equal(mixed[2:6], sample(logits[2:6], (rows_of(4, temperature=1.3),)))
    assert torch.equal(mixed[7:11], sample(logits[7:11], (rows_of(4, top_k=6, top_p=0.8),)))


def test_tokens_without_probability_are_never_drawn() -> None:
    count = 5000
    logits = torch.full((count, V), -torch.inf)
    logits[:, [3, 20]] = torch.tensor([0.0, -1.0])
    for random in (rows_of(count), rows_of(count, top_k=10), rows_of(count, top_p=0.99)):
        assert set(sample(logits, (random,)).tolist()) == {3, 20}


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("vocab", [V, 3000])
def test_a_row_with_nan_is_known_by_its_chosen_token(filters: Filters, vocab: int) -> None:
    """And by no other row's."""
    top_k, top_p, min_p = filters
    logits = logits_of(40, vocab)
    logits[3, 7] = logits[9, :] = logits[12, vocab - 1] = math.nan
    logits[13, 5] = math.inf
    random = rows_of(39, top_k=top_k, top_p=top_p, min_p=min_p)
    for groups in ((), (random,)):
        assert holds_nan(logits, sample(logits, groups)).nonzero()[:, 0].tolist() == [3, 9, 12]


@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
def test_candidates_draw_the_same_as_the_sorted_row(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flat rows, whose candidates are not enough, next to peaked ones, whose are."""
    count, vocab = 60, 3000
    logits = logits_of(count, vocab) * spread
    cases = [(vocab, 0.9), (40, 0.5), (2000, 0.99), (1024, math.inf), (2500, math.inf), (vocab, 0.05)]
    top_k, top_p = zip(*[cases[row % len(cases)] for row in range(count)], strict=True)
    random = dataclasses.replace(
        rows_of(count, top_k=1),
        top_k=torch.tensor(top_k)[:, None],
        top_p=torch.tensor(top_p, dtype=torch.float64)[:, None],
    )
    candidates = sample(logits, (random,))
    monkeypatch.setattr(sampler, "_CANDIDATES", vocab)
    assert torch.equal(candidates, sample(logits, (random,)))
