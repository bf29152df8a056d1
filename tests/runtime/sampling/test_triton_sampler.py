import logging
import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvasir.kernels.triton import device_support
from kvasir.sampling import sampler, triton_sampler
from kvasir.sampling.random import exponential
from kvasir.sampling.random_rows import RandomRows
from kvasir.sampling.sampler import holds_nan

ROUNDING = 4e-6
"""Tolerance for the difference of two scores: winners may change places within it."""

Filters = tuple[int | None, float | None, float | None]
FILTERS: list[Filters] = [
    (None, None, None),
    (1, None, None),
    (5, None, None),
    (None, 0.5, None),
    (None, 1e-300, None),
    (8, 0.7, None),
    (None, 0.999, None),
    (2**40, 0.95, None),
    (None, None, 0.1),
    (None, None, 1.0),
    (6, None, 0.02),
    (9, 0.8, 0.05),
]
"""top-k, top-p, min-p"""


def group(rows: list[int], vocab: int, filters: Filters, temperature: float = 0.8) -> RandomRows:
    top_k, top_p, min_p = filters
    is_filtered = top_k is not None or top_p is not None
    count = len(rows)
    return RandomRows(
        rows=torch.tensor(rows),
        temperature=torch.full((count, 1), temperature),
        seeds=torch.tensor(rows) * 977 - 2**62,
        positions=torch.tensor(rows),
        top_k=torch.full((count, 1), top_k or vocab) if is_filtered else None,
        top_p=torch.full((count, 1), top_p or math.inf, dtype=torch.float64) if is_filtered else None,
        min_p=None if min_p is None else torch.full((count, 1), min_p),
    )


def check(logits: Tensor, groups: tuple[RandomRows, ...]) -> list[int]:
    """Compare the kernels' tokens with those of plain torch and return them."""
    chosen, expected = triton_sampler.sample(logits, groups), sampler.sample(logits, groups)
    assert torch.equal(holds_nan(logits, chosen), holds_nan(logits, expected))
    for one in groups:
        scores = logits[one.rows].float() / one.temperature
        scores -= exponential(one.seeds, one.positions, logits.shape[1]).log_()
        pair = torch.stack([chosen[one.rows], expected[one.rows]], dim=1)
        first, second = scores.gather(1, pair).unbind(1)
        is_equal = (pair[:, 0] == pair[:, 1]) | ((first - second).abs() < ROUNDING)
        assert is_equal.all()
    greedy = torch.ones(len(logits), dtype=torch.bool)
    for one in groups:
        greedy[one.rows] = False
    assert torch.equal(chosen[greedy], expected[greedy])
    return chosen.tolist()


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("vocab", [50, 4999])
def test_tokens_are_those_of_plain_torch(vocab: int, filters: Filters) -> None:
    logits = torch.randn(5, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
    check(logits, (group([4, 1, 2], vocab, filters),))
    check(logits[:1].bfloat16(), (group([0], vocab, filters),))


def test_a_batch_may_have_rows_of_all_kinds() -> None:
    vocab = 301
    logits = torch.randn(2 * len(FILTERS) + 2, vocab, generator=torch.Generator().manual_seed(5)) * 2
    places = torch.randperm(len(logits), generator=torch.Generator().manual_seed(6)).tolist()
    groups = [group(places[2 * at : 2 * at + 2], vocab, filters) for at, filters in enumerate(FILTERS)]
    together = check(logits, tuple(groups))
    assert torch.equal(torch.tensor(together)[places[-2:]], logits[places[-2:]].argmax(dim=-1))
    for one in groups[::3]:
        alone = triton_sampler.sample(logits[one.rows], (at_the_top(one),))
        assert alone.tolist() == [together[row] for row in one.rows.tolist()]


def at_the_top(one: RandomRows) -> RandomRows:
    """Return the rows as rows 0, 1, ... of the logits."""
    values = {name: getattr(one, name) for name in ("temperature", "seeds", "positions", "top_k", "top_p", "min_p")}
    return RandomRows(rows=torch.arange(len(one.rows)), **values)


@pytest.mark.parametrize("filters", FILTERS[::2], ids=str)
def test_rows_with_odd_logits_are_treated_as_by_plain_torch(filters: Filters) -> None:
    """Ties, one token left, none left, NaN and infinity."""
    vocab = 77
    logits = torch.randn(9, vocab, generator=torch.Generator().manual_seed(7))
    logits[0] = 1.5
    logits[1] = logits[1].round()
    logits[2] = -torch.inf
    logits[3] = -torch.inf
    logits[3, 70] = 2.0
    logits[4, 60:] = torch.nan
    logits[5] = torch.nan
    logits[6, [9, 40]] = torch.inf
    logits[7, 10:] = -torch.inf
    logits[8, 0::2], logits[8, 1::2] = 0.0, -0.0
    chosen = check(logits, (group(list(range(9)), vocab, filters),))
    assert chosen[2:7] == [0, 70, 60, 0, 9]


numbers = st.one_of(st.integers(-4, 4).map(float), st.floats(-9, 9, width=16), st.just(-math.inf))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_small_batch_gets_the_tokens_of_plain_torch(data: st.DataObject) -> None:
    vocab = data.draw(st.integers(1, 9))
    rows = data.draw(st.lists(st.lists(numbers, min_size=vocab, max_size=vocab), min_size=1, max_size=3))
    top_k = data.draw(st.none() | st.integers(1, 9))
    # Sums of probabilities that are p to within rounding are left out: these are not.
    top_p = data.draw(st.none() | st.sampled_from([1e-9, 0.10137, 0.49119, 0.73943, 0.98817]))
    min_p = data.draw(st.none() | st.sampled_from([0.013, 0.37, 1.0]))
    temperature = data.draw(st.sampled_from([0.31, 1.0, 1.7]))
    check(torch.tensor(rows), (group(list(range(len(rows))), vocab, (top_k, top_p, min_p), temperature),))


@pytest.fixture
def cuda_with_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(device_support, "_has_compiler", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device_support.can_compile.cache_clear()
    yield
    device_support.can_compile.cache_clear()


@pytest.mark.usefixtures("cuda_with_compiler")
def test_a_gpu_has_the_kernels_and_a_cpu_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_support.has_kernels(torch.device("cuda"))
    assert not device_support.has_kernels(torch.device("cpu"))
    monkeypatch.setattr(device_support, "_has_compiler", lambda: False)
    device_support.can_compile.cache_clear()
    assert not device_support.has_kernels(torch.device("cuda"))


def test_the_kernels_sample_on_a_device_that_has_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names once the devices that they have run on."""
    device_support._log_unproven.cache_clear()
    monkeypatch.setattr(sampler, "has_kernels", lambda device: True)
    logits = torch.randn(3, 50)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(sampler.sample(logits, ()), logits.argmax(dim=-1))
        sampler.sample(logits, ())
    assert caplog.text.count("have been checked on") == 1
