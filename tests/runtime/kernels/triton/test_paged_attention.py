import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.kernels.triton.device_tiles import DEFAULT, device_entries
from kvasir.kernels.triton.tiling import AttentionTile, PagedShape, StepKind, attention_tile
from runtime.kernels.triton.paged_case import PagedCase

MIXED = [(37, 1), (90, 1), (0, 1), (0, 40), (21, 19)]
"""Decodes, a whole prompt, and a chunk of a longer one."""
SMALL = AttentionTile(rows=16, keys=32, num_warps=4, num_stages=2)
HALVES = (torch.float16, torch.bfloat16)

SHAPES = {
    "64": PagedShape(heads=2, kv_heads=2, head_dim=64, block_size=16),
    "64 in groups of 4": PagedShape(heads=8, kv_heads=2, head_dim=64, block_size=32),
    "80": PagedShape(heads=2, kv_heads=1, head_dim=80, block_size=16),
    "128 in groups of 4": PagedShape(heads=4, kv_heads=1, head_dim=128, block_size=16),
    "16 in groups of 6": PagedShape(heads=12, kv_heads=2, head_dim=16, block_size=8),
    "16 in a group of 20": PagedShape(heads=20, kv_heads=1, head_dim=16, block_size=32),
}


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_mixed_step_gives_the_definition(shape: PagedShape, dtype: torch.dtype) -> None:
    tiles = device_entries()[DEFAULT].attention
    PagedCase(shape, MIXED, dtype).check(
        attention_tile(shape, dtype.itemsize, StepKind.PREFILL, tiles, warp_size=32)
    )


@pytest.mark.parametrize("kind", list(StepKind))
def test_tiles_of_a_device_give_the_definition(kind: StepKind) -> None:
    shape, requests = SHAPES["128 in groups of 4"], [(300, 1), (127, 1), (0, 1)]
    tile = attention_tile(shape, 2, kind, device_entries()["NVIDIA H200"].attention, warp_size=32)
    PagedCase(shape, requests, torch.float16).check(tile, programs=16)


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("window", [1, 7, 16, 33, 1000])
def test_windows_and_caps_give_the_definition(window: int, softcap: float | None) -> None:
    PagedCase(SHAPES["64 in groups of 4"], MIXED, torch.float32).check(SMALL, window=window, softcap=softcap)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_precision_takes_windows_caps_and_segments(dtype: torch.dtype) -> None:
    case = PagedCase(SHAPES["128 in groups of 4"], [(900, 1), (40, 3)], dtype)
    case.check(SMALL, window=700, softcap=5.0, programs=16)


@pytest.mark.parametrize(("window", "softcap"), [(None, 2.0), (300, None), (600, 2.0)])
def test_segments_give_the_definition(window: int | None, softcap: float | None) -> None:
    case = PagedCase(SHAPES["64 in groups of 4"], [(1100, 1), (5, 1), (700, 6), (256, 1)], torch.float32)
    assert case.work_list(SMALL, window, programs=64).num_slots
    case.check(SMALL, window=window, softcap=softcap, programs=64)


@pytest.mark.parametrize(("window", "programs"), [(None, 1), (7, 1), (None, 64), (300, 64)])
def test_sinks_count_once_however_keys_are_split(window: int | None, programs: int) -> None:
    case = PagedCase(SHAPES["64 in groups of 4"], [(1100, 1), (5, 1), (70, 6)], torch.float32)
    sinks = torch.linspace(-3, 4, 8)
    case.check(SMALL, window=window, sinks=sinks, programs=programs)
    case.check(AttentionTile(64, 32, 4, 2), window=window, sinks=sinks, programs=programs)


def test_a_segment_without_keys_changes_nothing() -> None:
    case = PagedCase(SHAPES["64"], [(359, 1)], torch.float32)
    wide = AttentionTile(rows=16, keys=256, num_warps=4, num_stages=2)
    assert case.work_list(wide, None, programs=1000).num_slots == 3  # of 256, 104 and 0 keys
    case.check(wide, programs=1000)


def test_the_last_segment_may_begin_after_a_query() -> None:
    case = PagedCase(SHAPES["64"], [(254, 16)], torch.float32)
    wide = AttentionTile(rows=16, keys=128, num_warps=4, num_stages=2)
    assert case.work_list(wide, None, programs=1000).num_slots == 3  # the last one begins at key 256
    case.check(wide, programs=1000)


def test_the_first_keys_may_lie_before_the_window_of_a_query() -> None:
    case = PagedCase(SHAPES["64"], [(100, 40)], torch.float32)
    case.check(AttentionTile(rows=64, keys=16, num_warps=4, num_stages=2), window=8)


def test_the_first_segments_may_lie_before_the_window_of_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir.kernels.triton.work_list.MIN_SEGMENT_KEYS", 16)
    case = PagedCase(SHAPES["64"], [(100, 40)], torch.float32)
    case.check(AttentionTile(rows=64, keys=16, num_warps=4, num_stages=2), window=8, programs=1000)


def test_large_scores_overflow_neither_the_cap_nor_the_softmax() -> None:
    case = PagedCase(SHAPES["64"], MIXED, torch.float32)
    case.q *= 1000
    case.check(SMALL)
    case.check(SMALL, softcap=30.0)


@given(
    requests=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 20)), min_size=1, max_size=4),
    group=st.integers(1, 7),
    block_size=st.sampled_from([1, 4, 5, 16]),
    keys=st.sampled_from([16, 32]),
    window=st.none() | st.integers(1, 90),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_any_step_gives_the_definition(
    requests: list[tuple[int, int]], group: int, block_size: int, keys: int, window: int | None, seed: int
) -> None:
    shape = PagedShape(heads=group, kv_heads=1, head_dim=16, block_size=block_size)
    tile = AttentionTile(rows=16, keys=keys, num_warps=4, num_stages=2)
    PagedCase(shape, requests, torch.float32, seed).check(tile, window=window)
