from collections.abc import Iterator

import numpy as np
import pytest
import torch

from examples.one_by_one_backend import OneByOneBackend
from kvasir.kernels.cpu import kernels_for
from kvasir.layers.attention import AttentionBackend, HeadShape, ScoreRule
from kvasir.layers.attention_backends import gather_planner
from kvasir.layers.attention_backends.choose_backend import BACKENDS, choose_backend
from kvasir.layers.attention_backends.gather import GatherPlan
from kvasir.layers.attention_backends.gather_planner import GatherBackend
from kvasir.layers.attention_backends.tile_backend import TileBackend
from kvasir.layers.kv import FullAttention, KVCacheConfig
from kvasir.layers.parameter import Placement
from kvasir.request.tokens import packed
from kvasir.worker.batch import inputs
from kvasir.worker.batch.inputs import InputBuilder
from kvasir.worker.batch.request_table import RequestTable
from kvasir.worker.kv_memory import cache_memory
from kvasir.worker.kv_memory.cache_memory import allocate, block_shape
from kvasir.worker.step import NewRow, ScheduledRow
from runtime.layers.paged import (
    BLOCK,
    CPU,
    GREEDY,
    LENGTHS,
    SCALE,
    SHAPE,
    SHAPES,
    Paged,
    by_definition,
    kv_groups,
)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decodes are gathered 24 blocks at a time: in several groups. Masks of chunks have 200 numbers at most."""
    monkeypatch.setattr(gather_planner, "_MASK_NUMBERS", 200)
    monkeypatch.setattr(gather_planner, "CPU_GATHER_BYTES", 24 * BLOCK * SHAPE.kv_bytes(torch.float32))


def supported() -> Iterator[object]:
    """Each backend with all heads that it supports on this machine; the example of the documentation with one."""
    yield pytest.param((OneByOneBackend(), SHAPE), id="example")
    for backend in BACKENDS:
        for name, shape in SHAPES.items():
            if backend.supports(FullAttention(block_shape(shape, BLOCK, torch.float32)), shape, CPU):
                yield pytest.param((backend, shape), id=f"{backend.name}-{name}")


Case = tuple[AttentionBackend, HeadShape]


@pytest.fixture(params=supported())
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    backend, shape = request.param
    for module in (inputs, cache_memory):
        monkeypatch.setattr(module, "choose_backend", lambda spec, heads, placement: backend)
    return backend, shape


@pytest.mark.parametrize(
    ("window", "softcap"),
    [*((window, None) for window in (None, 1, 4, 8, 33)), *((window, 1.5) for window in (None, 2, 7, 9, 64))],
)
@torch.inference_mode()
def test_any_schedule_gives_the_definition(case: Case, window: int | None, softcap: float | None) -> None:
    shape = case[1]
    Paged((window,), softcap, shape).run(np.random.default_rng(list(SHAPES.values()).index(shape)))


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (7, None), (33, 1.5)])
@torch.inference_mode()
def test_sinks_take_weight_from_every_token(case: Case, window: int | None, softcap: float | None) -> None:
    Paged((window,), softcap, case[1], sinks=True).run(np.random.default_rng(5))


@pytest.mark.parametrize("window", [None, 1, 6, 33])
@torch.inference_mode()
def test_content_of_a_blocks_last_owner_reaches_no_request(case: Case, window: int | None) -> None:
    for seed, left in enumerate((float("nan"), float("inf"), float("nan"))):
        paged = Paged((window,), 1.5 if seed % 2 else None, case[1])
        paged.caches[0].blocks.fill_(left)  # the null block too
        paged.step({2: 4})
        paged.step({0: 1, 2: 1, 6: 1})  # request 0 has no second block, and 6 an unwritten one
        paged.run(np.random.default_rng(seed))


@pytest.mark.parametrize("windows", [(None, 6), (33, None), (2, 17), (1, 8, 9), (6, 6, 64)])
@torch.inference_mode()
def test_groups_share_a_memory_and_free_blocks_before_windows(case: Case, windows: tuple[int | None, ...]) -> None:
    for seed in range(3):
        paged = Paged(windows, 1.5 if seed % 2 else None, case[1], freed=float("nan"))
        assert len({cache.blocks.data_ptr() for cache in paged.caches}) == 1
        assert [cache.group for cache in paged.caches] == list(range(len(windows)))
        for cache in paged.caches:
            cache.blocks.fill_(torch.nan)  # the null block too
        paged.run(np.random.default_rng(seed))


@torch.inference_mode()
def test_layers_of_one_group_may_differ_in_their_windows(case: Case) -> None:
    Paged((None, 6, 33, 64), None, case[1]).run(np.random.default_rng(1))


def test_the_kernel_is_chosen_for_heads_that_fit_it() -> None:
    chosen = {
        name: choose_backend(FullAttention(block_shape(shape, BLOCK, torch.float32)), shape, CPU)
        for name, shape in SHAPES.items()
    }
    if kernels_for(CPU.device, CPU.dtype) is not None:
        assert all(isinstance(backend, TileBackend) == (name != "narrow") for name, backend in chosen.items())
    assert isinstance(chosen["narrow"], GatherBackend)
    meta = Placement(torch.device("meta"), torch.float32)
    for shape in SHAPES.values():
        spec = FullAttention(block_shape(shape, BLOCK, torch.float32))
        assert isinstance(choose_backend(spec, shape, meta), GatherBackend)


@torch.inference_mode()
def test_a_window_reads_only_the_blocks_that_it_touches() -> None:
    paged = Paged((6, None), None)
    batch = paged.inputs.build(
        [ScheduledRow(str(index), length - 1, 1, []) for index, length in enumerate(LENGTHS)]
    )
    (plan,) = batch.attention.values()

    def blocks(window: int | None) -> int:
        assert isinstance(plan, GatherPlan)
        return sum(group.pieces.numel() for group in plan.within(window).decode) // (2 * SHAPE.kv_heads)

    assert blocks(6) <= len(LENGTHS) * 3  # 6 tokens touch at most 3 blocks of 4
    assert blocks(None) >= sum(LENGTHS) // BLOCK


@torch.inference_mode()
def test_contexts_within_the_window_share_one_plan() -> None:
    paged = Paged((64,), None)
    (plan,) = paged.inputs.build([ScheduledRow("6", 0, 64, [])]).attention.values()
    assert isinstance(plan, GatherPlan)
    assert plan.within(64) is plan.within(None)


@torch.inference_mode()
def test_capped_prefills_of_many_queries_give_the_definition() -> None:
    qkv = torch.randn(300, SHAPE.query_size + 2 * SHAPE.kv_size, generator=torch.Generator().manual_seed(1))
    table = RequestTable(1, 300, BLOCK)
    table.add(NewRow("r", packed([0] * 300), 300, GREEDY))
    table.append_blocks(0, [list(range(1, 76))])
    windows = (None, 50)
    groups = kv_groups(windows, SHAPE, freed=False)
    builder = InputBuilder(table, CPU, groups=groups, heads=SHAPE, windows=windows, vocab_size=10, max_tokens=256)
    (plan,) = builder.build([ScheduledRow("r", 0, 300, [])]).attention.values()
    cache, _ = allocate(KVCacheConfig(groups, 75), SHAPE, CPU)
    for window in windows:
        output = plan.write_and_attend(qkv.clone(), cache, ScoreRule(SCALE, window, 2.0))
        assert torch.allclose(output.double(), by_definition(qkv, window, 2.0), rtol=1e-4, atol=1e-4)
