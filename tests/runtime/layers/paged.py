"""Requests over a paged cache, computed step by step by a backend and by the definition of attention."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kvasir.layers.attention import HeadShape, ScoreRule
from kvasir.layers.kv import FullAttention, KVCacheConfig, KVGroup, KVSpec, SlidingWindow
from kvasir.layers.parameter import Placement
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.worker.batch.inputs import InputBuilder
from kvasir.worker.batch.request_table import RequestTable
from kvasir.worker.kv_memory.cache_memory import allocate, block_shape
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


def by_definition(
    qkv: Tensor,
    window: int | None,
    softcap: float | None,
    shape: HeadShape = SHAPE,
    sinks: Tensor | None = None,
) -> Tensor:
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
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.double()[:, None, None].expand(-1, len(qkv), 1)), dim=-1)
    output: torch.Tensor = scores.softmax(-1)[..., : len(qkv)] @ v
    return output.transpose(0, 1).flatten(1)


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
        sinks: bool = False,
        lengths: Sequence[int] = LENGTHS,
        placement: Placement = CPU,
    ) -> None:
        generator = torch.Generator().manual_seed(11)
        width = shape.query_size + 2 * shape.kv_size
        layers = range(len(windows))
        self.qkv = [
            [(torch.randn(length, width, generator=generator) * 2).to(placement.dtype) for length in lengths]
            for _ in layers
        ]
        self.outputs = [
            [torch.zeros(length, shape.query_size, dtype=placement.dtype) for length in lengths] for _ in layers
        ]
        self._lengths, self._bound = lengths, 1e-4 if placement.dtype == torch.float32 else 2e-2
        self.computed = [0] * len(lengths)
        self.sinks = torch.randn(shape.heads, generator=generator) * 3 if sinks else None
        self._windows, self._softcap, self._shape, self._freed = windows, softcap, shape, freed
        groups = kv_groups(windows, shape, freed is not None, placement.dtype)
        self._table = RequestTable(len(lengths), max(lengths), BLOCK, kv_groups=len(groups))
        self._random = np.random.default_rng(3)
        num_blocks = max(NUM_BLOCKS, len(groups) * sum(-(-length // BLOCK) for length in lengths))
        blocks = iter(self._random.permutation(np.arange(1, 1 + num_blocks)).tolist())
        for index, length in enumerate(lengths):
            self._table.add(NewRow(str(index), packed([0] * length), length, GREEDY))
            own = [[next(blocks) for _ in range(-(-length // BLOCK))] for _ in groups]
            self._table.append_blocks(self._table.row_of(str(index)), own)
        self.caches = allocate(KVCacheConfig(groups, num_blocks), shape, placement)
        self.inputs = InputBuilder(
            self._table,
            placement,
            groups=groups,
            heads=shape,
            windows=windows,
            vocab_size=10,
            max_tokens=max(256, sum(lengths)),
        )

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
            rule = ScoreRule(SCALE, window, self._softcap, self.sinks)
            qkv = torch.cat([self.qkv[layer][index][span] for index, span in spans])
            given = qkv.clone()
            if at_once:
                output = plan.write_and_attend(qkv, cache, rule)
            else:
                q, kv = qkv.split([self._shape.query_size, 2 * self._shape.kv_size], dim=1)
                plan.write(kv, cache)
                output = plan.attend(q, cache, rule)
            assert torch.equal(qkv.nan_to_num(), given.nan_to_num()), "the caller's numbers were changed"
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
        while any(computed < length for computed, length in zip(self.computed, self._lengths, strict=True)):
            counts = {}
            for index, length in enumerate(self._lengths):
                count = min(length - self.computed[index], int(random.choice([0, 1, 1, 1, 5, 13, 64])))
                if count:
                    counts[index] = count
            if counts:
                self.step(counts)
        for layer, window in enumerate(self._windows):
            for qkv, output in zip(self.qkv[layer], self.outputs[layer], strict=True):
                expected = by_definition(qkv, window, self._softcap, self._shape, self.sinks)
                assert torch.allclose(output.double(), expected, rtol=self._bound, atol=self._bound)


def kv_groups(
    windows: tuple[int | None, ...], shape: HeadShape, freed: bool, dtype: torch.dtype = torch.float32
) -> tuple[KVGroup, ...]:
    block = block_shape(shape, BLOCK, dtype)
    if not freed:
        return (KVGroup(FullAttention(block), tuple(range(len(windows)))),)

    def spec(window: int | None) -> KVSpec:
        return FullAttention(block) if window is None else SlidingWindow(block, window)

    return tuple(KVGroup(spec(window), (layer,)) for layer, window in enumerate(windows))
