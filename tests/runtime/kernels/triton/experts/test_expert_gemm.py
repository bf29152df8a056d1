from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvasir.kernels.triton.experts import expert_kernels
from kvasir.kernels.triton.experts.expert_kernels import ExpertKernels
from kvasir.kernels.triton.experts.expert_tiling import ACTIVATIONS, CLAMPED, ExpertShape, Gate, tile_rows
from runtime.kernels.triton.experts.expert_case import CPU, ExpertCase, choices

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_step_gives_the_definition(activation: str, dtype: torch.dtype) -> None:
    ExpertCase(choices(11, 3, 6), 6, dtype, activation=activation).check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("activation", "own"), [("silu", None), (CLAMPED, range(2, 5))])
def test_biases_and_clamps_give_the_definition(activation: str, own: range | None, dtype: torch.dtype) -> None:
    ExpertCase(choices(11, 3, 6), 6, dtype, size=70, activation=activation, own=own, biased=True).check()


@pytest.mark.parametrize(("tokens", "top_k"), [(1, 1), (1, 8), (5, 2), (9, 8)])
def test_any_number_of_experts_of_a_token(tokens: int, top_k: int) -> None:
    ExpertCase(choices(tokens, top_k, 8), 8, torch.float32).check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_expert_may_have_all_tokens(dtype: torch.dtype) -> None:
    ExpertCase(torch.full((37, 1), 2), 5, dtype).check()


@pytest.mark.parametrize(("tokens", "experts"), [(100, 2), (300, 2)])
def test_long_prompts_have_larger_tiles(tokens: int, experts: int) -> None:
    ExpertCase(choices(tokens, 1, experts), experts, torch.bfloat16, size=64, inner=16).check()


@given(
    tokens=st.integers(1, 20),
    top_k=st.integers(1, 4),
    size=st.integers(1, 140),
    inner=st.integers(1, 140),
    own=st.sampled_from([range(4), range(1), range(1, 3), range(2, 4)]),
    dtype=st.sampled_from(DTYPES),
)
@settings(max_examples=10, deadline=None, derandomize=True)
def test_sizes_need_not_be_multiples_of_a_tile(
    tokens: int, top_k: int, size: int, inner: int, own: range, dtype: torch.dtype
) -> None:
    ExpertCase(choices(tokens, top_k, 4, tokens), 4, dtype, size=size, inner=inner, own=own).check()


def test_experts_of_other_ranks_give_zeros() -> None:
    case = ExpertCase(choices(9, 3, 8), 8, torch.bfloat16, own=range(2, 5))
    others = ~((case.chosen >= 2) & (case.chosen < 5))
    result = case.by_kernels()
    assert others.any()
    assert not result[others].any()
    assert result[~others].any(dim=1).all()
    case.check()


def test_a_step_without_tokens_launches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_kernels, "list_blocks", None)
    assert ExpertCase(choices(0, 2, 4), 4, torch.float32).by_kernels().shape == (0, 2, 80)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_roundings_are_those_of_plain_torch(activation: str, dtype: torch.dtype) -> None:
    """Sums of small integers are exact in any order, so that only the roundings to the type are left."""
    case = ExpertCase(choices(7, 2, 3), 3, dtype, activation=activation)
    generator = torch.Generator().manual_seed(1)
    gates, others = case.gate_up.chunk(2, dim=1)
    large, small = (100, 1.0), (1, 0.05)  # the largest number, and the share of the numbers that are not zero
    for tensor, (most, share) in (
        (case.x, (3, 1.0)),
        (gates[:, :24], large),
        (others[:, :24], small),
        (gates[:, 24:], small),
        (others[:, 24:], large),
        (case.down, (1, 0.1)),
    ):
        numbers = torch.randint(-most, most + 1, tensor.shape, generator=generator)
        tensor.copy_(numbers * (torch.rand(tensor.shape, generator=generator) < share))
    gates[:, :24] /= 256  # silu is not linear there
    case.down /= 4  # the results are less than the largest number of float16
    differing = (case.by_kernels() != case.by_torch(dtype)).float().mean()
    # Two functions for exp() give numbers that are seldom rounded in two ways.
    assert differing <= (0 if activation == "relu" else 0.005)


def test_a_token_that_is_nan_changes_no_other() -> None:
    case = ExpertCase(choices(9, 2, 3), 3, torch.float32)
    before = case.by_kernels()
    case.x[4] = torch.nan
    after = case.by_kernels()
    assert after[4].isnan().all()
    assert torch.equal(after[:4], before[:4])
    assert torch.equal(after[5:], before[5:])


@pytest.mark.parametrize(("tokens", "rows"), [(1, 16), (40, 64), (140, 128)])
def test_sums_have_one_order_in_all_tiles(tokens: int, rows: int) -> None:
    """Inputs are multiplied 64 at a time; one of them is not zero. A number of 2**24 absorbs a 1 next to it."""
    assert tile_rows(tokens, 1, 2) == rows
    case = ExpertCase(torch.zeros(tokens, 1).long(), 1, torch.bfloat16, size=320, inner=320, activation="relu")
    case.x.fill_(1)
    for weight in (case.gate_up, case.down):
        weight.zero_()
        weight[..., 5::64] = torch.tensor([2**24, 1, 1, -(2**24), 1])
    assert (case.by_kernels() == 1).all()  # the sum of each product, in this order alone


def test_the_host_reads_nothing_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors without numbers raise if one is read. Grids are numbers of the host."""
    launches = Launches()
    for name in ("list_blocks", "multiply_gate_up", "multiply_down", "add_weighted"):
        monkeypatch.setattr(expert_kernels, name, launches)
    kernels = ExpertKernels(ExpertShape(4, 80, 48), range(2, 6), 8, Gate("silu"), torch.device("meta"))
    x, chosen = empty(9, 80), empty(9, 3).long()
    parts = kernels(x, chosen, empty(4, 96, 80), empty(4, 80, 48))
    assert parts.shape == (9, 3, 80)
    assert kernels.weighted_sum(parts, empty(9, 3).float()).shape == (9, 80)
    assert launches.grids == [(4,), (5, 2), (5, 2), (9, 1)]


class Launches:
    """Instead of a kernel: notes the grids."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> "Launches":
        self.grids.append(grid)
        return self

    def __call__(self, *arguments: Any, **constants: Any) -> None:
        pass


def empty(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def test_other_shapes_are_rejected() -> None:
    kernels = ExpertKernels(ExpertShape(4, 16, 8), range(4), 4, Gate("silu"), CPU)
    chosen, gate_up, down = torch.zeros(3, 2, dtype=torch.int64), torch.zeros(4, 16, 16), torch.zeros(4, 16, 8)
    with pytest.raises(ValueError, match=r"x of shape \[3, 15\]"):
        kernels(torch.zeros(3, 15), chosen, gate_up, down)
    with pytest.raises(ValueError, match="x of shape"):
        kernels(torch.zeros(16, 3).T, chosen, gate_up, down)
    with pytest.raises(ValueError, match=r"chosen of shape \[2, 2\]"):
        kernels(torch.zeros(3, 16), chosen[:2], gate_up, down)
    with pytest.raises(ValueError, match=r"chosen .* torch\.int32"):
        kernels(torch.zeros(3, 16), chosen.int(), gate_up, down)
    with pytest.raises(ValueError, match="gate_up"):
        kernels(torch.zeros(3, 16), chosen, gate_up[:3], down)
    with pytest.raises(ValueError, match=r"down .* torch\.float16"):
        kernels(torch.zeros(3, 16), chosen, gate_up, down.half())
