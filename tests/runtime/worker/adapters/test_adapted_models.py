"""Adapters in one step answer as PEFT's unmerged layers, in float32."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvasir.config.lora_settings import LoRAConfig
from kvasir.parallel.parallel_state import SINGLE, ParallelState
from kvasir.request.params import SamplingParams
from runtime.models.tiny import FAMILIES, MODELS, llama, save
from runtime.parallel.thread_group import run_ranks
from runtime.worker.adapters.peft_adapters import adapted_logits, load_adapted, save_adapter
from runtime.worker.driver import Driver

LORA = LoRAConfig(enable_lora=True, max_loras=2)
PROMPTS = {"a": list(range(2, 40)), "b": list(range(50, 57)), "": [9, 8, 7]}  # by adapter
TOKENS = 5
# `all-linear` of PEFT has the router too, which is chosen by rounding here and there
FEW: dict[str, Any] = {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
MODULES = {"qwen3-moe": FEW}


def answers(path: Path, adapters: list[Path], parallel: ParallelState = SINGLE, **changes: Any) -> Driver:
    """Requests with each adapter and without one, in chunks of 16 tokens, next to decodes of one another."""
    driver = Driver.load(path, parallel=parallel, lora=LORA, **changes)
    params = SamplingParams(max_tokens=TOKENS, seed=0, temperature=0.0, logprobs=20)
    slots = {adapter.name: slot for slot, adapter in enumerate(adapters)}
    for slot, adapter in enumerate(adapters):
        driver.hold(slot, adapter)
    for name, prompt in PROMPTS.items():
        driver.add(name, prompt, params, slot=slots.get(name, -1))
        driver.step(budget=16)
    driver.run(budget=16)
    return driver


def assert_like_peft(path: Path, adapters: list[Path], found: Driver) -> None:
    reference = load_adapted(path, adapters)
    for name, prompt in PROMPTS.items():
        request = found.done[name]
        scores = adapted_logits(reference, name, prompt, request.outputs).log_softmax(-1)
        assert scores.argmax(-1).tolist() == request.outputs
        for place, entry in enumerate(request.logprobs):
            wanted = scores[place, entry.top_ids[0]]
            assert torch.allclose(torch.tensor(entry.top[0]), wanted, atol=2e-4)


def two_adapters(make: Callable[[], Any], tmp_path: Path, **changes: Any) -> tuple[Path, list[Path]]:
    path = save(make(), tmp_path / "model")
    ranks = {"a": 4, "b": 7}
    return path, [
        save_adapter(path, tmp_path / name, seed, r=rank, **changes)
        for seed, (name, rank) in enumerate(ranks.items())
    ]


@pytest.mark.parametrize(
    "name", ["llama-biases", "qwen2", "qwen3", "qwen3-moe", "gemma3", "phi3", "gpt2", "falcon-new", "gpt-neox"]
)
def test_adapters_of_a_family_answer_as_peft(name: str, tmp_path: Path) -> None:
    path, adapters = two_adapters({**MODELS, **FAMILIES}[name], tmp_path, **MODULES.get(name, {}))
    found = answers(path, adapters)
    assert_like_peft(path, adapters, found)


@pytest.mark.parametrize(
    "changes",
    [
        {"rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 9}, "alpha_pattern": {"v_proj": 40}},
        {"use_rslora": True, "target_modules": r".*\.(1|2)\.mlp\..*_proj"},
        {"target_modules": ["v_proj", "gate_proj"], "layers_to_transform": [1]},
    ],
)
def test_patterns_and_targets_are_those_of_peft(changes: dict[str, Any], tmp_path: Path) -> None:
    path, adapters = two_adapters(llama, tmp_path, **changes)
    assert_like_peft(path, adapters, answers(path, adapters))


@pytest.mark.parametrize("name", ["llama-gqa", "gpt2", "falcon-new"])
def test_two_ranks_answer_as_peft(name: str, tmp_path: Path) -> None:
    path, adapters = two_adapters({**MODELS, **FAMILIES}[name], tmp_path)
    for found in run_ranks(2, lambda group: answers(path, adapters, ParallelState(group))):
        assert_like_peft(path, adapters, found)


def test_a_request_has_the_bits_that_it_has_alone(tmp_path: Path) -> None:
    path, adapters = two_adapters(llama, tmp_path)
    params = SamplingParams(max_tokens=TOKENS, seed=0, temperature=0.0, logprobs=20)
    mixed = answers(path, adapters)
    alone = Driver.load(path, lora=LORA)
    alone.hold(1, adapters[0])
    alone.add("a", PROMPTS["a"], params, slot=1)
    alone.run()
    plain = Driver.load(path)
    plain.add("", PROMPTS[""], params)
    plain.run()
    for name, driver in (("a", alone), ("", plain)):
        assert mixed.done[name].outputs == driver.done[name].outputs
        assert mixed.done[name].logprobs == driver.done[name].logprobs


def test_a_slot_holds_only_its_last_adapter(tmp_path: Path) -> None:
    path = save(llama(), tmp_path / "model")
    both = save_adapter(path, tmp_path / "both", 1)
    one = save_adapter(path, tmp_path / "one", 2, target_modules=["v_proj"])
    params = SamplingParams(max_tokens=TOKENS, seed=0, temperature=0.0, logprobs=20)
    driver = Driver.load(path, lora=LORA)
    for place, adapter in enumerate((both, one, both)):
        driver.hold(0, adapter)
        driver.add(str(place), PROMPTS["a"], params, slot=0)
        driver.run()
    fresh = Driver.load(path, lora=LORA)
    fresh.hold(0, one)
    fresh.add("1", PROMPTS["a"], params, slot=0)
    fresh.run()
    assert driver.done["1"].logprobs == fresh.done["1"].logprobs != driver.done["0"].logprobs
    assert driver.done["2"].logprobs == driver.done["0"].logprobs
