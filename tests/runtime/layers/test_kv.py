import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.layers.kv import (
    BlockShape,
    FullAttention,
    KVCacheConfig,
    KVGroup,
    SlidingWindow,
    block_bytes,
    groups_of_stage,
    layer_specs,
    make_groups,
    num_memories,
)
from kvasir.parallel.stage import Stage

BLOCK = BlockShape(block_size=16, kv_heads=2, head_dim=64, dtype="bfloat16", dtype_bytes=2)


def groups_of(windows: list[int | None], max_model_len: int = 8192) -> tuple[KVGroup, ...]:
    return make_groups(layer_specs(BLOCK, windows, max_model_len))


def test_block_bytes_count_keys_and_values() -> None:
    assert BLOCK.num_bytes == 2 * 16 * 2 * 64 * 2


def test_layers_of_one_kind_are_one_group() -> None:
    assert groups_of([None] * 5) == (KVGroup(FullAttention(BLOCK), (0, 1, 2, 3, 4)),)
    assert groups_of([4096] * 3) == (KVGroup(SlidingWindow(BLOCK, 4096), (0, 1, 2)),)


def test_gemma_3_has_one_full_group_and_five_of_windows() -> None:
    groups = groups_of([512, 512, 512, 512, 512, None] * 2)
    assert [group.layers for group in groups] == [(5, 11), (0, 6), (1, 7), (2, 8), (3, 9), (4, 10)]
    assert groups[0].spec == FullAttention(BLOCK)
    assert {group.spec for group in groups[1:]} == {SlidingWindow(BLOCK, 512)}
    assert num_memories(groups) == 2
    assert block_bytes(groups) == 2 * BLOCK.num_bytes


def test_kinds_of_almost_as_many_layers_have_one_group_each() -> None:
    assert [len(group.layers) for group in groups_of([None] * 9 + [64] * 11)] == [9, 11]
    assert [len(group.layers) for group in groups_of([None] * 8 + [64] * 10)] == [8, 5, 5]


def test_a_window_that_no_request_exceeds_is_full_attention() -> None:
    assert len(groups_of([8191, None])) == 2
    assert groups_of([8192, None]) == (KVGroup(FullAttention(BLOCK), (0, 1)),)


@given(st.lists(st.sampled_from([None, None, 64, 128]), min_size=1, max_size=60))
def test_each_layer_is_in_one_group_of_its_kind(windows: list[int | None]) -> None:
    groups = groups_of(windows)
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(windows)))
    for group in groups:
        window = group.spec.window if isinstance(group.spec, SlidingWindow) else None
        assert {windows[layer] for layer in group.layers} == {window}
        assert group.layers == tuple(sorted(group.layers))
    assert num_memories(groups) < min(windows.count(kind) for kind in set(windows)) * 1.25 or len(groups) == 1


def test_a_stage_has_its_layers_of_each_group() -> None:
    groups = groups_of([512, 512, 512, 512, 512, None] * 2)
    first, second = groups_of_stage(groups, range(4)), groups_of_stage(groups, range(4, 12))
    assert [group.layers for group in first] == [(), (0,), (1,), (2,), (3,), ()]
    assert [group.layers for group in second] == [(5, 11), (6,), (7,), (8,), (9,), (4, 10)]
    assert [group.spec for group in first] == [group.spec for group in second] == [group.spec for group in groups]
    assert block_bytes(first) == BLOCK.num_bytes
    assert block_bytes(second) == 2 * BLOCK.num_bytes
    assert KVCacheConfig(first, 4).block_size == BLOCK.block_size


def test_one_stage_has_the_groups_of_the_model() -> None:
    groups = groups_of([None, 64, 64])
    assert groups_of_stage(groups, range(3)) == groups


@given(st.data())
def test_stages_hold_each_layer_once_in_a_memory_of_its_own(data: st.DataObject) -> None:
    windows = data.draw(st.lists(st.sampled_from([None, None, 64, 128]), min_size=1, max_size=60))
    stages = data.draw(st.integers(1, min(len(windows), 8)))
    groups = groups_of(windows)
    parts = [groups_of_stage(groups, Stage.of(len(windows), stage, stages).layers) for stage in range(stages)]
    held = [layer for part in parts for group in part for layer in group.layers]
    assert sorted(held) == list(range(len(windows)))
    for part in parts:
        assert [group.spec for group in part] == [group.spec for group in groups]
        assert 1 <= num_memories(part) <= num_memories(groups)
        assert block_bytes(part) == max(len(group.layers) for group in part) * BLOCK.num_bytes
        for group, whole in zip(part, groups, strict=True):
            assert set(group.layers) <= set(whole.layers)
            # The place of a layer in its group is its memory.
            assert len(set(group.layers)) == len(group.layers) <= num_memories(part)


@pytest.mark.parametrize(
    "groups", [(), (KVGroup(FullAttention(BLOCK), (0,)), KVGroup(FullAttention(BlockShape(8, 2, 64, "", 2)), (1,)))]
)
def test_a_cache_of_no_or_different_blocks_is_refused(groups: Any) -> None:
    with pytest.raises(ValueError, match="blocks of one shape"):
        KVCacheConfig(groups, 4)


def test_the_engine_reads_specs_without_torch() -> None:
    code = "import kvasir.layers.kv, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
