import math

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir.kernels.triton.sampling.race import log_exponential, uniform
from kvasir.kernels.triton.sampling.sampling_kernels import Draw, choose_largest, draw
from kvasir.kernels.triton.sampling.sizes import PART_TOKENS
from kvasir.sampling import random

BEYOND_A_PART = 2 * PART_TOKENS + 37


@triton.jit  # type: ignore[untyped-decorator]
def _store_uniform(out, seeds, positions, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    ids = tl.arange(0, SIZE)
    tl.store(out + row * SIZE + ids, uniform(tl.load(seeds + row), tl.load(positions + row), ids))


@triton.jit  # type: ignore[untyped-decorator]
def _store_log_exponential(out, numbers, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    ids = tl.arange(0, SIZE)
    tl.store(out + ids, log_exponential(tl.load(numbers + ids), True))


def draw_of(count: int, seed: int = 0) -> Draw:
    """Rows 0, 1, ... at a temperature of 1"""
    return Draw(
        rows=torch.arange(count),
        temperature=torch.ones(count),
        seeds=torch.arange(seed, seed + count),
        positions=torch.arange(count),
    )


def drawn(logits: Tensor, of: Draw) -> list[int]:
    chosen = torch.full((len(logits),), -7)
    draw(logits, chosen, of)
    return chosen.tolist()


def largest(logits: Tensor) -> list[int]:
    chosen = torch.full((len(logits),), -7)
    choose_largest(logits, chosen)
    return chosen.tolist()


def test_uniform_numbers_have_the_bits_of_the_reference() -> None:
    """Seed 1972 gives token 17397 a number that rounds to 1."""
    cases = [(0, 0), (1972, 0), (-1, 5), (2**63 - 1, 10**6), (-(2**63), 3), (1234567, 131071)]
    seeds, positions = (torch.tensor(column) for column in zip(*cases, strict=True))
    out = torch.empty(len(cases), 2**15)
    _store_uniform[len(cases),](out, seeds, positions, SIZE=2**15)
    assert torch.equal(out, random.uniform(seeds, positions, 2**15))
    assert out[1, 17397] == 1 - 2.0**-24


def test_exponential_numbers_are_right_to_within_rounding() -> None:
    """Also of uniform numbers so small that 1 minus the number is 1."""
    u = torch.cat([torch.tensor([2.0**-32, 2.0**-25, 2.0**-24, 3e-7, 0.5, 1 - 2.0**-24]), torch.rand(1018)])
    u.clamp_(2.0**-32, 1 - 2.0**-24)
    out = torch.empty(1024)
    _store_log_exponential[1,](out, u, SIZE=1024)
    expected = (-torch.log1p(-u.double())).log()
    torch.testing.assert_close(out.double(), expected, rtol=3e-7, atol=4e-7)


@pytest.mark.parametrize("vocab", [1, 50, PART_TOKENS, BEYOND_A_PART])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_greedy_rows_take_the_first_of_the_largest(vocab: int, dtype: torch.dtype) -> None:
    logits = torch.randn(5, vocab, generator=torch.Generator().manual_seed(vocab)).to(dtype)
    logits[1] = -torch.inf
    logits[2] = 0.0
    logits[2, ::2] = -0.0
    logits[3, -1] = logits[3].max()
    logits[4, [0, -1]] = 9.0
    assert largest(logits) == logits.float().argmax(dim=-1).tolist()


@pytest.mark.parametrize("place", [0, 40, PART_TOKENS, BEYOND_A_PART - 1])
def test_a_token_with_nan_wins(place: int) -> None:
    """The first one, whatever the sign and the other bits of NaN are: invalid operations on x86 set the sign."""
    logits = torch.randn(3, BEYOND_A_PART, generator=torch.Generator().manual_seed(1))
    logits[1, -1] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
    logits[1, 5] = math.inf
    logits[1, place] = torch.tensor(-0x400000, dtype=torch.int32).view(torch.float32)
    assert largest(logits)[1] == place
    assert drawn(logits, draw_of(3))[1] == place


def test_the_only_token_with_probability_wins() -> None:
    for place in (0, PART_TOKENS - 1, PART_TOKENS, BEYOND_A_PART - 1):
        logits = torch.full((3, BEYOND_A_PART), -torch.inf)
        logits[:, place] = -300.0
        assert drawn(logits, draw_of(3, seed=1971)) == [place] * 3


def test_rows_of_a_draw_may_be_any_of_the_logits() -> None:
    """Other rows keep their tokens, and logits may be a part of a wider matrix."""
    wide = torch.randn(9, 300, generator=torch.Generator().manual_seed(2))
    logits = wide[:, :250]
    of = draw_of(3)
    rows = torch.tensor([7, 0, 4])
    chosen = torch.full((9,), -7)
    draw(logits, chosen, Draw(rows, of.temperature, of.seeds, of.positions))
    assert chosen[rows].tolist() == drawn(logits[rows].contiguous(), of)
    assert (chosen == -7).sum() == 6


def test_other_types_are_rejected() -> None:
    logits, chosen, of = torch.zeros(2, 50), torch.zeros(2, dtype=torch.int64), draw_of(2)
    with pytest.raises(ValueError, match="float64"):
        choose_largest(logits.double(), chosen)
    with pytest.raises(ValueError, match="strides"):
        choose_largest(torch.zeros(50, 2).T, chosen)
    with pytest.raises(ValueError, match="int32"):
        choose_largest(logits, chosen.int())
    with pytest.raises(ValueError, match=r"temperature of shape \[2, 1\]"):
        draw(logits, chosen, Draw(of.rows, of.temperature[:, None], of.seeds, of.positions))
    with pytest.raises(ValueError, match="together"):
        draw(logits, chosen, Draw(of.rows, of.temperature, of.seeds, of.positions, top_k=torch.tensor([1, 1])))
