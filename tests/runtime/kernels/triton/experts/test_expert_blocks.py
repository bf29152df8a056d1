"""The list of blocks has each row of this rank's experts once, and fits the launch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvasir.kernels.triton.experts.expert_kernels import Blocks, listed_blocks
from kvasir.kernels.triton.experts.expert_tiling import most_blocks
from runtime.kernels.triton.experts.expert_case import choices


def listed(blocks: Blocks) -> list[tuple[int, list[int]]]:
    table = blocks.table[: blocks.count.item()].tolist()
    return [(expert, blocks.places[first : first + rows].tolist()) for expert, first, rows, _ in table]


def expected(chosen: Tensor, own: range, rows: int) -> list[tuple[int, list[int]]]:
    """Sort stably, as a reference."""
    found = []
    for expert in own:
        places = (chosen.flatten() == expert).nonzero().flatten().tolist()
        found += [(expert - own.start, places[first : first + rows]) for first in range(0, len(places), rows)]
    return found


def test_rows_are_sorted_by_expert_and_cut_into_blocks() -> None:
    chosen = torch.tensor([[2, 0], [0, 2], [2, 1], [0, 2]])
    assert listed(listed_blocks(chosen, range(3), 2)) == [(0, [1, 2]), (0, [6]), (1, [5]), (2, [0, 3]), (2, [4, 7])]
    assert listed(listed_blocks(chosen, range(1, 3), 16)) == [(0, [5]), (1, [0, 3, 4, 7])]


@given(
    tokens=st.integers(1, 40),
    experts=st.integers(1, 9),
    top_k=st.integers(1, 9),
    bounds=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    rows=st.sampled_from([1, 2, 16]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_any_choice_is_listed(
    tokens: int, experts: int, top_k: int, bounds: tuple[int, int], rows: int, seed: int
) -> None:
    chosen = choices(tokens, min(top_k, experts), experts, seed)
    first, last = (min(bound, experts) for bound in sorted(bounds))
    own = range(first, last) if first < last else range(experts)
    assert listed(listed_blocks(chosen, own, rows)) == expected(chosen, own, rows)


def test_a_long_step_is_read_in_several_parts() -> None:
    chosen = choices(700, 8, 12)  # 5,600 rows, 4,096 at a time
    assert listed(listed_blocks(chosen, range(3, 12), 64)) == expected(chosen, range(3, 12), 64)


@pytest.mark.parametrize(("experts", "rows"), [(1, 16), (5, 1), (5, 4), (64, 16)])
@pytest.mark.parametrize("num_rows", [1, 4, 5, 6, 23, 100])
def test_the_most_blocks_occur(num_rows: int, experts: int, rows: int) -> None:
    """A row for each expert, and the rest for the last one."""
    chosen = torch.arange(num_rows).clamp(max=experts - 1)[:, None]
    assert len(expected(chosen, range(experts), rows)) == most_blocks(num_rows, experts, rows)
