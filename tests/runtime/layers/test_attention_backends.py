"""Every attention backend equals the definition of attention: windows, caps, chunks and decodes in any mix."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from examples.one_by_one_backend import OneByOneBackend
from kvasir.kernels.cpu import kernels_for
from kvasir.layers.attention import AttentionBackend, HeadShape
from kvasir.layers.attention_backends import gather_planner
from kvasir.layers.attention_backends.choose_backend import BACKENDS, choose_backend
from kvasir.layers.attention_backends.gather import GatherPlan
from kvasir.layers.attention_backends.gather_planner import GatherBackend
from kvasir.layers.attention_backends.tiles import TileBackend
from kvasir.layers.kv import FullAttention, KVCacheConfig, KVGroup, KVSpec, SlidingWindow
from kvasir.layers.parameter import Placement
from kvasir.params import SamplingParams
from kvasir.tokens import packed
from kvasir.worker import cache_memory
from kvasir.worker.batch import inputs
from kvasir.worker.batch.inputs import InputBuilder
from kvasir.worker.batch.request_table import RequestTable
from kvasir.worker.cache_memory import allocate, block_shape
from kvasir.worker.step import NewRow, ScheduledRow

BLOCK = 4
SHAPE = HeadShape(heads=4, kv_heads=2, head_dim=8)
SHAPES = {
    "narrow": SHAPE,
    "a head each": HeadShape(heads=3, kv_heads=3, head_dim=64),
    "groups of 6": HeadShape(heads=12, kv_heads=2, head_dim=32),
    "groups of 12": HeadShape(heads=12, kv_heads=1, head_dim=16),
    "of 128": HeadShape(heads=8, kv_heads=2, head_dim=128),
    "of 80": HeadShape(heads=2, kv_heads=2, head_dim=80),
    "wide": HeadShape(heads=2, kv_heads=1, head_dim=256),
}
SCALE = 0.3
CPU = Placement(torch.device("cpu"), torch.float32)
LENGTHS = (1, 3, 5, 16, 23, 40, 64)
NUM_BLOCKS = 150
GREEDY = SamplingParams(max_tokens=1, seed=0, temperature=0.0)


def by_definition(qkv: Tensor, window: int | None, softcap: float | None, shape: HeadShape = SHAPE) -> Tensor:
    """One request's tokens: [T, (heads + 2 kv_heads) * head_dim] → [T, heads * head_dim]"""
    q, k, v = qkv.double().split([shape.query_size, shape.kv_size, shape.kv_size], dim=1)
    q = q.view(-1, shape.heads, shape.head_dim).transpose(0, 1)
    k, v = (
        x.view(-1, shape.kv_heads, shape.head_dim).transpose(0, 1).repeat_interleave(shape.group, 0) for x in (k, v)
    )
    scores = q @ k.mT * SCALE
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    distance = torch.arange(len(qkv))[:, None] - torch.arange(len(qkv))
    hidden = distance < 0
    if window is not None:
        hidden |= distance >= window
    output: torch.Tensor = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
    return output.transpose(0, 1).flatten(1)


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


class Paged:
    """Requests whose projections are known, computed step by step through the caches of some layers.

    `windows` are those of the layers. With `freed`, each layer is a KV group, and blocks that a window leaves
    behind get other content at once: another request has them.
    """

    def __init__(
        self,
        windows: tuple[int | None, ...],
        softcap: float | None,
        shape: HeadShape = SHAPE,
        *,
        freed: float | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(11)
        width = shape.query_size + 2 * shape.kv_size
        layers = range(len(windows))
        self.qkv = [[torch.randn(length, width, generator=generator) * 2 for length in LENGTHS] for _ in layers]
        self.outputs = [[torch.zeros(length, shape.query_size) for length in LENGTHS] for _ in layers]
        self.computed = [0] * len(LENGTHS)
        self._windows, self._softcap, self._shape, self._freed = windows, softcap, shape, freed
        groups = _groups(windows, shape, freed is not None)
        self._table = RequestTable(len(LENGTHS), max(LENGTHS), BLOCK, kv_groups=len(groups))
        self._random = np.random.default_rng(3)
        blocks = iter(self._random.permutation(np.arange(1, 1 + NUM_BLOCKS)).tolist())
        for index, length in enumerate(LENGTHS):
            self._table.add(NewRow(str(index), packed([0] * length), length, GREEDY))
            own = [[next(blocks) for _ in range(-(-length // BLOCK))] for _ in groups]
            self._table.append_blocks(self._table.row_of(str(index)), own)
        self.caches = allocate(KVCacheConfig(groups, NUM_BLOCKS), shape, CPU)
        self.inputs = InputBuilder(self._table, CPU, groups=groups, heads=shape, windows=windows, vocab_size=10)

    def step(self, counts: dict[int, int]) -> None:
        scheduled = [ScheduledRow(str(index), self.computed[index], count, []) for index, count in counts.items()]
        batch = self.inputs.build(scheduled)
        # decodes stand first, by length of context, then whole prompts, by length
        order = sorted(
            counts,
            key=lambda index: (
                (0, self.computed[index], 0) if counts[index] == 1 else (1, self.computed[index] > 0, counts[index])
            ),
        )
        spans = [(index, slice(self.computed[index], self.computed[index] + counts[index])) for index in order]
        at_once = bool(self._random.integers(2))
        for layer, (window, cache) in enumerate(zip(self._windows, self.caches, strict=True)):
            plan = batch.attention[cache.group]
            qkv = torch.cat([self.qkv[layer][index][span] for index, span in spans])
            given = qkv.clone()
            if at_once:
                output = plan.write_and_attend(qkv, cache, SCALE, window=window, softcap=self._softcap)
            else:
                q, kv = qkv.split([self._shape.query_size, 2 * self._shape.kv_size], dim=1)
                plan.write(kv, cache)
                output = plan.attend(q, cache, SCALE, window=window, softcap=self._softcap)
            assert torch.equal(qkv, given), "the caller's numbers were changed"
            outputs = output.split([counts[index] for index in order])
            for (index, span), output in zip(spans, outputs, strict=True):
                self.outputs[layer][index][span] = output
        for index, span in spans:
            self.computed[index] = span.stop
            self._free(index)

    def _free(self, request: int) -> None:
        """Give blocks that the next token does not see to others; the table has the null block, or the old id."""
        row = self._table.row_of(str(request))
        for window, cache in zip(self._windows, self.caches, strict=True):
            if self._freed is None or window is None:
                continue
            own = self._table.block_tables[cache.group, row]
            for place in range(max(0, self.computed[request] - window + 1) // BLOCK):
                cache.blocks[own[place]] = self._freed
                if self._random.integers(2):
                    own[place] = 0

    def run(self, random: np.random.Generator) -> None:
        """Compute everything, in any chunks, and compare it with the definition."""
        while any(computed < length for computed, length in zip(self.computed, LENGTHS, strict=True)):
            counts = {}
            for index, length in enumerate(LENGTHS):
                count = min(length - self.computed[index], int(random.choice([0, 1, 1, 1, 5, 13, 64])))
                if count:
                    counts[index] = count
            if counts:
                self.step(counts)
        for layer, window in enumerate(self._windows):
            for qkv, output in zip(self.qkv[layer], self.outputs[layer], strict=True):
                expected = by_definition(qkv, window, self._softcap, self._shape)
                assert torch.allclose(output.double(), expected, rtol=1e-4, atol=1e-4)


def _groups(windows: tuple[int | None, ...], shape: HeadShape, freed: bool) -> tuple[KVGroup, ...]:
    block = block_shape(shape, BLOCK, torch.float32)
    if not freed:
        return (KVGroup(FullAttention(block), tuple(range(len(windows)))),)

    def spec(window: int | None) -> KVSpec:
        return FullAttention(block) if window is None else SlidingWindow(block, window)

    return tuple(KVGroup(spec(window), (layer,)) for layer, window in enumerate(windows))


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("window", [None, 1, 2, 4, 7, 8, 9, 33, 64])
@torch.inference_mode()
def test_any_schedule_gives_the_definition(case: Case, window: int | None, softcap: float | None) -> None:
    shape = case[1]
    Paged((window,), softcap, shape).run(np.random.default_rng(list(SHAPES.values()).index(shape)))


@pytest.mark.parametrize("left", [float("nan"), float("inf")])
@pytest.mark.parametrize("window", [None, 1, 6, 33])
@torch.inference_mode()
def test_content_of_a_blocks_last_owner_reaches_no_request(case: Case, window: int | None, left: float) -> None:
    for seed in range(5):
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
def test_without_a_context_longer_than_the_window_there_is_one_plan() -> None:
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
    groups = _groups(windows, SHAPE, freed=False)
    builder = InputBuilder(table, CPU, groups=groups, heads=SHAPE, windows=windows, vocab_size=10)
    (plan,) = builder.build([ScheduledRow("r", 0, 300, [])]).attention.values()
    cache, _ = allocate(KVCacheConfig(groups, 75), SHAPE, CPU)
    for window in windows:
        output = plan.write_and_attend(qkv.clone(), cache, SCALE, window=window, softcap=2.0)
        assert torch.allclose(output.double(), by_definition(qkv, window, 2.0), rtol=1e-4, atol=1e-4)
