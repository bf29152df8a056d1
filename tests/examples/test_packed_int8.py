"""A weight scheme is one file and one line of the registry."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kvasir.hub import weight_scheme
from kvasir.hub.model_info import load_model_info
from kvasir.models.check_ranks import check_ranks
from kvasir.models.model_load_error import ModelLoadError
from kvasir.models.product_weights import product_weights
from kvasir.parallel.parallel_state import SINGLE, ParallelState
from runtime.models.split_answers import answers
from runtime.models.tiny import MODELS, llama, save
from runtime.parallel.thread_group import run_ranks
from runtime.worker.driver import Driver, greedy

QUANTISED = re.compile(r".*\.(?:[a-z]+_proj|gate)\.weight")
IGNORED = ["lm_head", "layers.1.self_attn.o_proj"]
CONFIG = {"quant_method": "packed-int8", "ignored": IGNORED}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_scheme, "SCHEMES", {"packed-int8": "examples.packed_int8:choose_method"})


def quantise(path: Path) -> tuple[Path, Path]:
    """Write a model's checkpoint with 8-bit weights, and one with the floats that they stand for."""
    tensors, floats = load_file(path / "model.safetensors"), {}
    for name, weight in list(tensors.items()):
        layer = name.removeprefix("model.").removesuffix(".weight")
        if QUANTISED.fullmatch(name) and layer not in IGNORED:
            scale = weight.abs().amax(dim=1) / 127
            whole = (weight / scale[:, None]).round().to(torch.int8)
            floats[name] = whole * scale[:, None]
            prefix = name.removesuffix("weight")
            del tensors[name]
            tensors |= {prefix + "weight_packed": whole.view(torch.int32), prefix + "weight_scale": scale}
    assert floats
    config = json.loads((path / "config.json").read_text())
    return (
        write(path / "int8", config | {"quantization_config": CONFIG}, tensors),
        write(path / "floats", config, load_file(path / "model.safetensors") | floats),
    )


def write(path: Path, config: dict[str, object], tensors: dict[str, Tensor]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors")
    return path


def assert_alike(path: Path, expected: Path, parallel: ParallelState = SINGLE) -> None:
    found = answers(path, parallel)
    for request, (tokens, logprobs) in answers(expected, SINGLE).items():
        assert found[request][0] == tokens
        assert torch.allclose(torch.tensor(found[request][1]), torch.tensor(logprobs), atol=1e-3)


@pytest.mark.parametrize(
    ("name", "expert_parallel"),
    [("llama-biases", False), ("llama-mha-tied", False), ("qwen3-moe", False), ("qwen3-moe", True)],
)
def test_scheme_answers_as_the_floats_it_stands_for(name: str, expert_parallel: bool, tmp_path: Path) -> None:
    path, floats = quantise(save(MODELS[name](), tmp_path))
    assert_alike(path, floats)
    run_ranks(2, lambda group: assert_alike(path, floats, ParallelState(group, expert_parallel=expert_parallel)))


def test_weights_are_counted_as_numbers_and_as_bytes(tmp_path: Path) -> None:
    path, floats = quantise(save(llama(), tmp_path))
    found, plain = (product_weights(load_model_info(each), "float32") for each in (path, floats))
    assert found is not None
    assert plain is not None
    assert (found.layers, found.head) == (plain.layers, plain.head)
    assert found.num_bytes < plain.num_bytes / 2


def test_dummy_weights_are_made_for_the_scheme(tmp_path: Path) -> None:
    path, _ = quantise(save(llama(), tmp_path))
    driver = Driver.load(path, load_format="dummy")
    driver.add("r", [3, 4, 5], greedy(2))
    assert len(driver.run()["r"]) == 2


def test_an_entry_is_not_split_between_ranks(tmp_path: Path) -> None:
    path, _ = quantise(save(llama(num_attention_heads=8, num_key_value_heads=8, head_dim=4), tmp_path))
    info = load_model_info(path)
    check_ranks(info, 64, 4, expert_parallel=False)
    with pytest.raises(ModelLoadError, match=r"-tensor-parallel-size 8: 8 ranks .* 112 in units of 4"):
        check_ranks(info, 64, 8, expert_parallel=False)


def test_a_tensor_of_another_type_is_refused(tmp_path: Path) -> None:
    path, _ = quantise(save(llama(), tmp_path))
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight_packed"
    save_file(tensors | {name: tensors[name].float()}, path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=rf"{name}.* is torch.float32 and must be torch.int32"):
        answers(path, SINGLE)
