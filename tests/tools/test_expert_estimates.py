"""The estimates of experts follow from the kernels' sizes, and the page has the present ones."""

import pytest
from tools.expert_estimates import CASES, PAGE, TABLE, estimate

WEIGHTS = 3 * 2048 * 768 * 2
"""Bytes of an expert."""


def test_the_page_has_the_present_table() -> None:
    assert PAGE.read_text() == TABLE.written(), "run python -m tools.expert_estimates"


@pytest.mark.parametrize("tokens", CASES)
def test_an_estimate_is_not_below_the_bound(tokens: int) -> None:
    found = estimate(tokens)
    assert found.loaded_bytes >= found.needed_bytes
    assert found.executed_operations >= found.needed_operations


def test_a_single_token_reads_the_weights_of_its_experts_once() -> None:
    found = estimate(1)
    assert found.needed_bytes == 8 * WEIGHTS + 2048 * 2 + 2048 * 4
    assert found.loaded_bytes - found.needed_bytes < 0.1 * found.needed_bytes
    assert found.executed_operations == 16 * found.needed_operations


def test_a_long_prompt_fills_its_tiles() -> None:
    found = estimate(8192)  # 512 rows for each expert
    assert found.executed_operations == found.needed_operations
    assert found.programs == 4 * 128 * (768 // 128 + 2048 // 256)
