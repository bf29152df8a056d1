"""A model that is split into pipeline stages computes the same as the whole model, each stage loaded by itself."""

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3MoeConfig

from kvasir.hub.model_info import load_model_info
from kvasir.layers.kv import KVCacheConfig, groups_of_stage, make_groups
from kvasir.layers.parameter import Placement
from kvasir.models.forward_batch import ForwardBatch, Hidden, Intermediate
from kvasir.models.load_model import load_model
from kvasir.parallel.group import ALONE, Group
from kvasir.parallel.parallel_state import ParallelState
from kvasir.params import SamplingParams
from kvasir.tokens import packed
from kvasir.worker.batch.inputs import InputBuilder
from kvasir.worker.batch.request_table import RequestTable
from kvasir.worker.cache_memory import allocate, block_shape
from kvasir.worker.step import NewRow, ScheduledRow
from runtime.models.tiny import MODELS, MOE, decoder, gpt2, save
from runtime.parallel.thread_group import Meeting, ThreadGroup, run_ranks

CPU = torch.device("cpu")
CONTEXT, BLOCK = 64, 8
PROMPTS = {"a": list(range(7, 47)), "b": list(range(90, 102))}
STEPS = ((("a", 0, 16), ("b", 0, 11)), (("a", 16, 24), ("b", 11, 1)))
"""Prefills of both requests; then a chunk next to a decode."""

ALL: dict[str, Callable[[], PreTrainedModel]] = {
    **MODELS,
    "qwen3-one-kv-head": lambda: decoder(Qwen3Config, head_dim=32, num_key_value_heads=1),
    "qwen3-moe-last": lambda: decoder(Qwen3MoeConfig, **MOE, mlp_only_layers=[0, 1]),
    "gemma3-five-layers": lambda: decoder(type(MODELS["gemma3"]().config), head_dim=32, num_hidden_layers=5),
    "gpt2-odd-vocabulary": lambda: gpt2(vocab_size=253),
}


class Part:
    """A model, or one stage of it, with the KV memories of its layers."""

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
        )

    def compute(self, step: Sequence[tuple[str, int, int]], arrived: Intermediate | None) -> Hidden | Intermediate:
        batch = self.inputs.build([ScheduledRow(name, start, tokens, []) for name, start, tokens in step])
        return self.model.forward(
            ForwardBatch(batch.token_ids, batch.positions, batch.attention, self.caches, arrived)
        )


def stage(rank: int, size: int, tensor: Group = ALONE) -> ParallelState:
    return ParallelState(tensor, ThreadGroup(rank, Meeting(size)))


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
    path: Path, stages: int, tensor: Group = ALONE, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    return computed([Part(path, stage(rank, stages, tensor), dtype) for rank in range(stages)])


def assert_same_bits(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected) == 2 * len(STEPS)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", list(ALL))
@torch.inference_mode()
def test_two_and_three_stages_compute_the_bits_of_one(name: str, tmp_path: Path) -> None:
    path = save(ALL[name](), tmp_path)
    expected = computed_in_stages(path, 1)
    for stages in (2, 3):
        assert_same_bits(computed_in_stages(path, stages), expected)


@pytest.mark.parametrize("name", ["llama-mha-tied", "gpt2", "qwen3-moe", "gemma3"])
@torch.inference_mode()
def test_stages_in_bfloat16_compute_the_bits_of_one(name: str, tmp_path: Path) -> None:
    path = save(ALL[name](), tmp_path)
    expected = computed_in_stages(path, 1, dtype=torch.bfloat16)
    assert_same_bits(computed_in_stages(path, 2, dtype=torch.bfloat16), expected)


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3-one-kv-head", "gpt2-odd-vocabulary", "qwen3-moe", "gemma3"])
def test_stages_of_two_ranks_compute_the_bits_of_one_stage(name: str, tmp_path: Path) -> None:
    path = save(ALL[name](), tmp_path)
    expected = run_ranks(2, lambda group: computed_in_stages(path, 1, group))
    found = run_ranks(2, lambda group: computed_in_stages(path, 2, group))
    for one, other in zip(found, expected, strict=True):
        assert_same_bits(one, other)


def test_a_later_stage_needs_the_result_of_the_stage_before(tmp_path: Path) -> None:
    part = Part(save(ALL["llama-mha-tied"](), tmp_path), stage(1, 2))
    with pytest.raises(AssertionError, match="begins with the result of the stage before"):
        part.compute(STEPS[0], None)


def test_a_stage_has_memories_for_its_own_layers(tmp_path: Path) -> None:
    path = save(ALL["gemma3"](), tmp_path)
    parts = [Part(path, stage(rank, 3)) for rank in range(3)]
    assert [part.model.stage.layers for part in parts] == [range(2), range(2, 4), range(4, 6)]
    assert [len(part.caches) for part in parts] == [2, 2, 2]
    for part in parts:
        places = {(cache.blocks.data_ptr(), cache.group) for cache in part.caches}
        assert len(places) == 2
        assert len(part.table.block_tables) == 3
        assert len(part.model.windows) == 6
