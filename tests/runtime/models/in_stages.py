"""Computes the pipeline stages of a model one after the other in one process, each of them loaded by itself."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from kvasir.hub.model_info import load_model_info
from kvasir.layers.kv import KVCacheConfig, groups_of_stage, make_groups
from kvasir.layers.parameter import Placement
from kvasir.models.forward_batch import ForwardBatch, Hidden, Intermediate
from kvasir.models.load_model import load_model
from kvasir.parallel.group import ALONE, Group
from kvasir.parallel.parallel_state import ParallelState
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed
from kvasir.worker.batch.inputs import InputBuilder
from kvasir.worker.batch.request_table import RequestTable
from kvasir.worker.kv_memory.cache_memory import allocate, block_shape
from kvasir.worker.step import NewRow, ScheduledRow
from runtime.parallel.thread_group import Meeting, ThreadGroup

CPU = torch.device("cpu")
CONTEXT, BLOCK = 64, 8
PROMPTS = {"a": list(range(7, 47)), "b": list(range(90, 102))}
STEPS = ((("a", 0, 16), ("b", 0, 11)), (("a", 16, 24), ("b", 11, 1)))
"""Prefills of both requests; then a chunk next to a decode."""


class Part:
    def __init__(self, path: Path, parallel: ParallelState, dtype: torch.dtype = torch.float32) -> None:
        placement = Placement(CPU, dtype, parallel)
        self.model = model = load_model(load_model_info(path), placement, CONTEXT, lambda done, total: None)
        groups = make_groups(model.kv_specs(block_shape(model.heads, BLOCK, dtype), CONTEXT))
        own = groups_of_stage(groups, model.stage.layers)
        ids = count(1)
        self.table = RequestTable(len(PROMPTS), CONTEXT, BLOCK, kv_groups=len(groups))
        for name, prompt in PROMPTS.items():
            self.table.add(NewRow(name, packed(prompt), len(prompt), SamplingParams(max_tokens=1, seed=0)))
            blocks = [[next(ids) for _ in range(0, len(prompt), BLOCK)] for _ in groups]
            self.table.append_blocks(self.table.row_of(name), blocks)
        self.caches = allocate(KVCacheConfig(own, next(ids)), model.heads, placement)
        self.inputs = InputBuilder(
            self.table,
            placement,
            groups=own,
            heads=model.heads,
            windows=model.windows,
            vocab_size=model.vocab_size,
            max_tokens=256,
        )

    def compute(self, step: Sequence[tuple[str, int, int]], arrived: Intermediate | None) -> Hidden | Intermediate:
        batch = self.inputs.build([ScheduledRow(name, start, tokens, []) for name, start, tokens in step])
        return self.model.forward(
            ForwardBatch(batch.token_ids, batch.positions, batch.attention, self.caches, arrived)
        )


def stage(rank: int, size: int, tensor: Group = ALONE, *, whole_experts: bool = False) -> ParallelState:
    return ParallelState(tensor, ThreadGroup(rank, Meeting(size)), whole_experts)


def computed(parts: Sequence[Part]) -> list[Tensor]:
    """Return the states of each step, and their logits: [T, hidden] and [T, vocabulary]."""
    results = []
    for step in STEPS:
        arrived: Intermediate | None = None
        for part in parts[:-1]:
            passed = part.compute(step, arrived)
            assert isinstance(passed, Intermediate)
            assert passed.residual.shape == (sum(tokens for _, _, tokens in step), part.model.hidden_size)
            arrived = Intermediate(passed.residual.clone())  # as if it were sent
        hidden = parts[-1].compute(step, arrived)
        assert isinstance(hidden, Hidden)
        results += [hidden.last, parts[-1].model.logits(hidden.last)]
    return results


def computed_in_stages(
    path: Path,
    stages: int,
    tensor: Group = ALONE,
    dtype: torch.dtype = torch.float32,
    *,
    whole_experts: bool = False,
) -> list[Tensor]:
    states = [stage(rank, stages, tensor, whole_experts=whole_experts) for rank in range(stages)]
    return computed([Part(path, state, dtype) for state in states])


def assert_same_bits(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected) == 2 * len(STEPS)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
