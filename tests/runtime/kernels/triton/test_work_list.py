import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.kernels.triton.work_list import MAX_SEGMENTS, MIN_SEGMENT_KEYS, WorkList, work_list


def listed(requests: list[tuple[int, int]], window: int | None = None, programs: int = 1) -> WorkList:
    computed, new = np.array(requests).T
    return work_list(computed, new, tokens_per_item=4, window=window, kv_heads=2, programs=programs)


def test_chunks_are_cut_into_items() -> None:
    work = listed([(7, 1), (0, 1), (20, 10)])
    assert work.items.tolist() == [
        [0, 0, 1, 7, 0, 1, 0, 0],
        [1, 1, 1, 0, 0, 1, 0, 0],
        [2, 2, 4, 20, 0, 1, 0, 0],
        [2, 6, 4, 24, 0, 1, 0, 0],
        [2, 10, 2, 28, 0, 1, 0, 0],
    ]
    assert work.merges.shape == (0, 4)
    assert work.num_slots == 0


def test_a_long_decode_is_split() -> None:
    work = listed([(10, 1), (511, 1)], programs=132)
    assert work.items[:, [0, 4, 5, 6]].tolist() == [
        [0, 0, 1, 0],
        [1, 0, 4, 0],
        [1, 1, 4, 1],
        [1, 2, 4, 2],
        [1, 3, 4, 3],
    ]
    assert work.merges.tolist() == [[0, 4, 1, 1]]
    assert work.num_slots == 4


def test_many_programs_are_not_split() -> None:
    assert len(listed([(10, 1)] * 65 + [(100_000, 1)], programs=132).items) == 66


def test_a_window_bounds_the_segments() -> None:
    assert len(listed([(100_000, 1)], window=MIN_SEGMENT_KEYS, programs=132).items) == 1
    assert len(listed([(100_000, 1)], window=4 * MIN_SEGMENT_KEYS, programs=132).items) == 4


def test_segments_have_a_maximum() -> None:
    assert len(listed([(10**6, 1)], programs=10_000).items) == MAX_SEGMENTS


@given(
    requests=st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 30)), min_size=1, max_size=8)
    | st.lists(st.tuples(st.integers(0, 5000), st.just(1)), min_size=1, max_size=8),
    window=st.none() | st.integers(1, 4000),
    programs=st.integers(1, 300),
)
@settings(deadline=None)
def test_each_token_and_slot_occurs_once(
    requests: list[tuple[int, int]], window: int | None, programs: int
) -> None:
    work = listed(requests, window, programs)
    seen, slots = [], []
    for row, token, tokens, position, segment, segments, slot, _ in work.items.tolist():
        assert 1 <= tokens <= 4
        if segment == 0:
            seen += [(token + place, row, position + place) for place in range(tokens)]
        if segments > 1:
            slots.append(slot)
    rows = [(row, computed + place) for row, (computed, new) in enumerate(requests) for place in range(new)]
    assert seen == [(token, *expected) for token, expected in enumerate(rows)]
    assert slots == list(range(work.num_slots))
    assert sum(work.merges[:, 1]) == work.num_slots
