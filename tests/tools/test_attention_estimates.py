"""The estimates of attention launches follow from the kernels' sizes, and the page has the present ones."""

import pytest
from tools.attention_estimates import CASES, PAGE, TABLE, estimate


def test_the_page_has_the_present_table() -> None:
    assert PAGE.read_text() == TABLE.written(), "run python -m tools.attention_estimates"


@pytest.mark.parametrize("requests", CASES.values(), ids=CASES)
def test_an_estimate_is_not_below_the_bound(requests: list[tuple[int, int]]) -> None:
    found = estimate(requests)
    assert found.loaded_bytes >= found.needed_bytes
    assert found.executed_operations >= found.needed_operations


def test_a_single_decode_reads_its_context_once() -> None:
    found = estimate([(32767, 1)])
    kv_bytes = 32768 * 8 * 2 * 128 * 2
    assert found.needed_bytes == kv_bytes + 2 * 32 * 128 * 2
    partials = found.loaded_bytes - found.needed_bytes
    assert 0 < partials < kv_bytes / 10
    assert found.programs > 400, "too few programs for 132 multiprocessors"


def test_a_short_prompt_loads_its_keys_once_for_each_tile_of_queries() -> None:
    found = estimate([(0, 64)])  # tiles of 32 tokens: one sees 32 keys, one 64
    assert found.loaded_bytes - found.needed_bytes == 32 * 8 * 2 * 128 * 2
    assert found.executed_operations == 2 * 4 * 64 * 128 * 128 * 8
