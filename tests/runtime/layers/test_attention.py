"""Paged attention equals its definition: windows, caps, chunks and decodes in any mix."""

import numpy as np
import pytest
import torch
from torch import Tensor

from kvasir.kernels.cpu import kernels_for
from kvasir.layers.attention import GatherPlan, HeadShape, KVCache, TilePlan, attend
from kvasir.layers.parameter import Placement
from kvasir.params import SamplingParams
from kvasir.tokens import packed
from kvasir.worker.batch import gather_plan
from kvasir.worker.batch.inputs import InputBuilder
from kvasir.worker.batch.request_table import RequestTable
from kvasir.worker.step import NewRow, ScheduledRow

BLOCK = 4
SHAPE = HeadShape(heads=4, kv_heads=2, head_dim=8)
"""Heads that the CPU's kernel does not take: they are computed in plain torch."""
SHAPES = {
    "torch": SHAPE,
    "a head each": HeadShape(heads=3, kv_heads=3, head_dim=64),
    "groups of 6": HeadShape(heads=12, kv_heads=2, head_dim=32),
    "groups of 12": HeadShape(heads=12, kv_heads=1, head_dim=16),
    "of 128": HeadShape(heads=8, kv_heads=2, head_dim=128),
    "of 80": HeadShape(heads=2, kv_heads=2, head_dim=80),
    "wide": HeadShape(heads=2, kv_heads=1, head_dim=256),
}
SCALE = 0.3
LENGTHS = (1, 3, 5, 16, 23, 40, 64)
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
    """Decodes are gathered 24 blocks at a time: in several groups."""
    monkeypatch.setattr(gather_plan, "CPU_GATHER_BYTES", 24 * BLOCK * SHAPE.kv_bytes(torch.float32))


def has_kernel(shape: HeadShape) -> bool:
    return shape is not SHAPE and kernels_for(torch.device("cpu"), torch.float32) is not None


class Paged:
    """Requests whose projections are known, computed step by step through one cache."""

    def __init__(self, window: int | None, softcap: float | None, shape: HeadShape = SHAPE) -> None:
        generator = torch.Generator().manual_seed(11)
        width = shape.query_size + 2 * shape.kv_size
        self.qkv = [torch.randn(length, width, generator=generator) * 2 for length in LENGTHS]
        self.outputs = [torch.zeros(length, shape.query_size) for length in LENGTHS]
        self.computed = [0] * len(LENGTHS)
        self._window, self._softcap, self._shape = window, softcap, shape
        table = RequestTable(len(LENGTHS), max(LENGTHS), BLOCK)
        blocks = iter(np.random.default_rng(3).permutation(np.arange(1, 100)).tolist())
        for index, length in enumerate(LENGTHS):
            table.add(NewRow(str(index), packed([0] * length), length, GREEDY))
            table.append_blocks(table.row_of(str(index)), [next(blocks) for _ in range(-(-length // BLOCK))])
        self.cache = KVCache(torch.zeros(100, 2, shape.kv_heads, BLOCK, shape.head_dim))
        self._inputs = InputBuilder(
            table,
            Placement(torch.device("cpu"), torch.float32),
            block_size=BLOCK,
            heads=shape,
            vocab_size=10,
            windows=frozenset() if window is None else frozenset((window,)),
        )

    def step(self, counts: dict[int, int]) -> None:
        scheduled = [ScheduledRow(str(index), self.computed[index], count, []) for index, count in counts.items()]
        batch = self._inputs.build(scheduled)
        # decodes stand first, by length of context, then whole prompts, by length
        order = sorted(
            counts,
            key=lambda index: (
                (0, self.computed[index], 0) if counts[index] == 1 else (1, self.computed[index] > 0, counts[index])
            ),
        )
        spans = [(index, slice(self.computed[index], self.computed[index] + counts[index])) for index in order]
        qkv = torch.cat([self.qkv[index][span] for index, span in spans])
        (plan,) = batch.attention
        assert isinstance(plan, TilePlan if has_kernel(self._shape) else GatherPlan)
        given = qkv.clone()
        output = attend(qkv, self.cache, plan, self._shape, SCALE, window=self._window, softcap=self._softcap)
        assert torch.equal(qkv, given), "the caller's numbers were changed"
        outputs = output.split([counts[index] for index in order])
        for (index, span), output in zip(spans, outputs, strict=True):
            self.outputs[index][span] = output
            self.computed[index] = span.stop

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
        for qkv, output in zip(self.qkv, self.outputs, strict=True):
            expected = by_definition(qkv, self._window, self._softcap, self._shape)
            assert torch.allclose(output.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("window", [None, 1, 2, 4, 7, 8, 9, 33, 64])
@pytest.mark.parametrize("heads", SHAPES)
@torch.inference_mode()
def test_any_schedule_gives_what_the_definition_gives(
    heads: str, window: int | None, softcap: float | None
) -> None:
    Paged(window, softcap, SHAPES[heads]).run(np.random.default_rng(list(SHAPES).index(heads)))


@pytest.mark.parametrize("left", [float("nan"), float("inf")])
@pytest.mark.parametrize("window", [None, 1, 6, 33])
@pytest.mark.parametrize("heads", SHAPES)
@torch.inference_mode()
def test_what_the_last_owner_of_a_block_left_there_reaches_nobody(
    heads: str, window: int | None, left: float
) -> None:
    for seed in range(5):
        paged = Paged(window, 1.5 if seed % 2 else None, SHAPES[heads])
        paged.cache.blocks.fill_(left)  # the null block too
        paged.step({2: 4})
        paged.step({0: 1, 2: 1, 6: 1})  # request 0 has no second block, and 6 an unwritten one
        paged.run(np.random.default_rng(seed))


@torch.inference_mode()
def test_a_window_reads_the_blocks_that_it_touches_only() -> None:
    paged = Paged(window=6, softcap=None)
    paged.computed = [length - 1 for length in LENGTHS]
    batch = paged._inputs.build(
        [ScheduledRow(str(index), length - 1, 1, []) for index, length in enumerate(LENGTHS)]
    )

    (plan,) = batch.attention

    def blocks(window: int | None) -> int:
        assert isinstance(plan, GatherPlan)
        return sum(group.pieces.numel() for group in plan.within(window).decode) // (2 * SHAPE.kv_heads)

    assert blocks(6) <= len(LENGTHS) * 3  # 6 tokens touch at most 3 blocks of 4
    assert blocks(None) >= sum(LENGTHS) // BLOCK


@torch.inference_mode()
def test_without_a_context_longer_than_the_window_there_is_one_plan() -> None:
    paged = Paged(window=64, softcap=None)
    batch = paged._inputs.build([ScheduledRow("6", 0, 64, [])])
    (plan,) = batch.attention
    assert isinstance(plan, GatherPlan)
    assert plan.within(64) is plan


@torch.inference_mode()
def test_capped_prefills_of_many_queries_are_those_of_the_definition() -> None:
    qkv = torch.randn(300, SHAPE.query_size + 2 * SHAPE.kv_size, generator=torch.Generator().manual_seed(1))
    table = RequestTable(1, 300, BLOCK)
    table.add(NewRow("r", packed([0] * 300), 300, GREEDY))
    table.append_blocks(0, list(range(1, 76)))
    placement = Placement(torch.device("cpu"), torch.float32)
    inputs = InputBuilder(table, placement, block_size=BLOCK, heads=SHAPE, vocab_size=10, windows=frozenset((50,)))
    (plan,) = inputs.build([ScheduledRow("r", 0, 300, [])]).attention
    cache = KVCache(torch.zeros(76, 2, 2, BLOCK, 8))
    for window in (None, 50):
        output = attend(qkv.clone(), cache, plan, SHAPE, SCALE, window=window, softcap=2.0)
        assert torch.allclose(output.double(), by_definition(qkv, window, 2.0), rtol=1e-4, atol=1e-4)
