from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3MoeConfig

from kvasir.hub.weights import weight_files
from runtime.models.in_stages import STEPS, Part, assert_same_bits, computed_in_stages, stage
from runtime.models.tiny import FAMILIES, MODELS, MOE, decoder, gpt2, save
from runtime.parallel.thread_group import run_ranks

ALL: dict[str, Callable[[], PreTrainedModel]] = {
    **MODELS,
    **FAMILIES,
    "qwen3-one-kv-head": lambda: decoder(Qwen3Config, head_dim=32, num_key_value_heads=1),
    "qwen3-moe-last": lambda: decoder(Qwen3MoeConfig, **MOE, mlp_only_layers=[0, 1]),
    "gemma3-five-layers": lambda: decoder(type(MODELS["gemma3"]().config), head_dim=32, num_hidden_layers=5),
    "gpt2-odd-vocabulary": lambda: gpt2(vocab_size=253),
}


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


@pytest.mark.parametrize("name", ["qwen3-moe", "qwen3-moe-last"])
def test_stages_with_whole_experts_compute_the_bits_of_one(name: str, tmp_path: Path) -> None:
    path = save(ALL[name](), tmp_path)
    expected = run_ranks(2, lambda group: computed_in_stages(path, 1, group, whole_experts=True))
    found = run_ranks(2, lambda group: computed_in_stages(path, 2, group, whole_experts=True))
    for one, other in zip(found, expected, strict=True):
        assert_same_bits(one, other)


@torch.inference_mode()
def test_stages_of_many_files_compute_the_bits_of_one(tmp_path: Path) -> None:
    model = ALL["qwen3-moe"]()
    model.save_pretrained(tmp_path / "many", max_shard_size="150KB")
    assert len(weight_files(tmp_path / "many")) > 2
    expected = computed_in_stages(save(model, tmp_path / "one"), 1)
    assert_same_bits(computed_in_stages(tmp_path / "many", 3), expected)


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
