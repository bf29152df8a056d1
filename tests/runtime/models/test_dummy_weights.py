from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import OlmoConfig

from kvasir.hub.model_info import load_model_info
from kvasir.layers.parameter import Placement
from kvasir.models.load_model import load_model
from kvasir.models.model_load_error import ModelLoadError
from kvasir.parallel.parallel_state import SINGLE, ParallelState
from runtime.models.tiny import MODELS, decoder, save
from runtime.parallel.thread_group import Meeting, ThreadGroup
from runtime.worker.driver import Driver, greedy


def config_only(name: str, path: Path) -> Path:
    save(MODELS[name](), path)
    (path / "model.safetensors").unlink()
    return path


def parameters(path: Path, parallel: ParallelState = SINGLE) -> dict[str, Tensor]:
    placement = Placement(torch.device("cpu"), torch.float32, parallel)
    model = load_model(load_model_info(path), placement, 64, lambda done, total: None, "dummy")
    assert isinstance(model, torch.nn.Module)
    return dict(model.named_parameters())


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3-moe", "gpt2", "gemma3"])
def test_a_model_without_weights_answers_alike_each_time(name: str, tmp_path: Path) -> None:
    path = config_only(name, tmp_path)
    seen: list[tuple[int, int]] = []

    def answer() -> list[int]:
        driver = Driver.load(path, lambda done, total: seen.append((done, total)), load_format="dummy")
        driver.add("r", [3, 4, 5], greedy(5))
        return driver.run()["r"]

    assert answer() == answer()
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1] > 0


def test_dummy_weights_are_small_and_differ(tmp_path: Path) -> None:
    weights = parameters(config_only("qwen3-moe", tmp_path))
    assert all(0 < float(weight.abs().max()) <= 1e-3 for weight in weights.values())
    firsts = [float(weight.flatten()[0]) for weight in weights.values()]
    assert len(set(firsts)) == len(firsts)


@pytest.mark.parametrize("experts", [False, True])
def test_ranks_agree_on_replicated_dummy_weights_only(experts: bool, tmp_path: Path) -> None:
    path = config_only("qwen3-moe", tmp_path)
    whole = parameters(path)
    one, other = (
        parameters(path, ParallelState(ThreadGroup(rank, Meeting(2)), expert_parallel=experts)) for rank in range(2)
    )
    for name, weight in whole.items():
        assert torch.equal(one[name], other[name]) == (one[name].shape == weight.shape), name


def test_dummy_weights_are_refused_for_the_code_of_transformers(tmp_path: Path) -> None:
    path = save(decoder(OlmoConfig), tmp_path)
    with pytest.raises(ModelLoadError, match=r"--load-format dummy: OlmoForCausalLM .*--load-format safetensors"):
        parameters(path)
