"""The generator against Python's integers, and its statistics over seeds, positions and token ids."""

import math

import torch

from kvasir.sampling.random import exponential, uniform

MASK, MASK_32 = 2**64 - 1, 2**32 - 1


def split_mix(state: int) -> int:
    """The published generator's output function, in Python's integers."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def expected_bits(seed: int, position: int, token: int) -> int:
    golden = 0x9E3779B97F4A7C15
    key = split_mix((split_mix((seed + golden) & MASK) + (position + 1) * golden) & MASK)
    x = (token * 0x9E3779B9 + (key & MASK_32)) & MASK_32
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK_32
    x = ((x ^ (x >> 15) ^ (key >> 32)) * 0x846CA68B) & MASK_32
    return (x ^ (x >> 16)) & (2**31 - 1)


def test_published_values_of_split_mix() -> None:
    """SplitMix64 started at 0 gives 0xE220A8397B1DCDAF first (Vigna's reference implementation)."""
    assert split_mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


def test_numbers_depend_on_seed_position_and_token_alone() -> None:
    cases = [(0, 0), (1, 0), (-1, 5), (2**63 - 1, 10**6), (-(2**63), 3), (1234567, 131071)]
    numbers = uniform(torch.tensor([s for s, _ in cases]), torch.tensor([p for _, p in cases]), 1000)
    assert numbers.dtype == torch.float32
    for row, (seed, position) in enumerate(cases):
        alone = uniform(torch.tensor([seed]), torch.tensor([position]), 400)[0]
        assert torch.equal(numbers[row, :400], alone)
        bits = torch.tensor([expected_bits(seed, position, token) for token in range(400)])
        assert torch.equal(alone, (bits.to(torch.int32).float() + 0.5) * 2.0**-31)


def test_no_number_is_1_and_so_no_exponential_number_is_infinite() -> None:
    """Seed 1972 gives token 17397 one of the 64 numbers of 2**31 that round to 1."""
    seed, token = 1972, 17397
    assert expected_bits(seed, 0, token) >= 2**31 - 64
    seeds, positions = torch.tensor([seed]), torch.tensor([0])
    assert uniform(seeds, positions, token + 1)[0, token] == 1 - 2.0**-24
    assert exponential(seeds, positions, token + 1).isfinite().all()


def chi_square(numbers: torch.Tensor, bins: int = 256) -> float:
    """Deviations from uniform, in standard deviations of the chi-square statistic."""
    counts = torch.histc(numbers, bins, 0, 1)
    mean = numbers.numel() / bins
    statistic = float(((counts - mean) ** 2 / mean).sum())
    return (statistic - (bins - 1)) / math.sqrt(2 * (bins - 1))


def test_uniform_over_seeds_over_positions_and_over_tokens() -> None:
    ramp, zeros = torch.arange(50_000), torch.zeros(50_000, dtype=torch.int64)
    tokens = uniform(torch.tensor([7]), torch.tensor([3]), 50_000)[0]
    columns = [uniform(*pair, 3)[:, 2] for pair in ((zeros + 42, ramp), (ramp, zeros), (ramp << 32, zeros))]
    for numbers in (tokens, *columns):
        assert float(numbers.min()) > 0
        assert float(numbers.max()) < 1
        assert abs(chi_square(numbers)) < 5


def test_neighbours_are_uncorrelated() -> None:
    ramp, zeros = torch.arange(50_000), torch.zeros(50_000, dtype=torch.int64)
    base = uniform(ramp, zeros, 2)
    for other in (uniform(ramp + 1, zeros, 2)[:, 0], uniform(ramp, zeros + 1, 2)[:, 0], base[:, 1]):
        correlation = float(torch.corrcoef(torch.stack((base[:, 0], other)))[0, 1])
        assert abs(correlation) < 5 / 50_000**0.5
        assert abs(chi_square((base[:, 0] + other) % 1)) < 5


def test_exponential_numbers_have_mean_and_variance_one() -> None:
    numbers = exponential(torch.arange(100), torch.arange(100), 2000).double()
    assert float(numbers.min()) > 0
    assert abs(float(numbers.mean()) - 1) < 0.02
    assert abs(float(numbers.var()) - 1) < 0.05
