import json
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from kvasir.hub.model_info import ModelFiles
from kvasir.layers.attention_backends import choose_backend
from kvasir.layers.attention_backends.triton_paged import TritonBackend
from kvasir.models.decoder import Decoder
from kvasir.models.model_load_error import ModelLoadError
from kvasir.parallel.parallel_state import SINGLE, ParallelState
from kvasir.worker.worker import Worker
from runtime.models.chunked_answers import answers as chunked_answers
from runtime.models.in_stages import assert_same_bits, computed_in_stages
from runtime.models.mixtures import MIXTURES
from runtime.models.quantised.packers import mxfp4
from runtime.models.split_answers import answers
from runtime.models.test_tensor_parallel import assert_alike
from runtime.models.tiny import save
from runtime.parallel.thread_group import run_ranks
from runtime.worker.driver import Driver, greedy
from runtime.worker.test_greedy import assert_greedy, prompts

_MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
}


@pytest.fixture(params=list(MIXTURES))
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[PreTrainedModel, Path]:
    model = MIXTURES[request.param]()
    return model, save(model, tmp_path)


def test_mixture_computes_the_tokens_of_transformers(tiny: tuple[PreTrainedModel, Path]) -> None:
    """In chunks of 16 tokens, next to decodes, and resumed after a preemption."""
    model, path = tiny
    driver, batch = Driver.load(path), prompts([1, 9, 45, 70])
    assert isinstance(driver.worker, Worker)
    assert isinstance(driver.worker._model, Decoder)
    for index, prompt in enumerate(batch):
        driver.add(f"r{index}", prompt, greedy(12))
    for _ in range(5):
        driver.step(budget=16)
    driver.preempt("r1")
    outputs = driver.run(budget=16)
    for index, prompt in enumerate(batch):
        assert_greedy(model, prompt, outputs[f"r{index}"])


@pytest.mark.parametrize(
    ("name", "experts"),
    [
        ("gpt-oss", False),
        ("gpt-oss", True),
        ("qwen2-moe", False),
        ("glm4-moe", True),
        ("olmoe", False),
        ("llama4", True),
    ],
)
def test_mixture_on_two_ranks_answers_as_on_one(name: str, experts: bool, tmp_path: Path) -> None:
    """With parts of each expert, or with whole experts."""
    path = save(MIXTURES[name](), tmp_path)
    expected = answers(path, SINGLE)
    for found in run_ranks(2, lambda group: answers(path, ParallelState(group, expert_parallel=experts))):
        assert_alike(found, expected)


@pytest.mark.parametrize("name", ["gpt-oss", "qwen2-moe"])
@torch.inference_mode()
def test_mixture_in_two_stages_computes_the_bits_of_one(name: str, tmp_path: Path) -> None:
    path = save(MIXTURES[name](), tmp_path)
    assert_same_bits(computed_in_stages(path, 2), computed_in_stages(path, 1))


def test_sinks_are_computed_by_triton_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(MIXTURES["gpt-oss"](), tmp_path)
    expected = chunked_answers(path)
    monkeypatch.setattr(choose_backend, "BACKENDS", (TritonBackend(device_type="cpu"),))
    monkeypatch.setattr("kvasir.kernels.triton.work_list.MIN_SEGMENT_KEYS", 16)
    for request, (tokens, logprobs) in chunked_answers(path).items():
        assert tokens == expected[request][0]
        assert torch.allclose(torch.tensor(logprobs), torch.tensor(expected[request][1]), atol=2e-4)


@pytest.mark.parametrize("name", ["glm4-moe", "mixtral"])
def test_experts_of_one_tensor_are_read(name: str, tmp_path: Path) -> None:
    """As transformers 5 holds them in memory, and saves them on request."""
    model = MIXTURES[name]()
    expected = answers(save(model, tmp_path / "each"), SINGLE)
    save_stacked(model, tmp_path / "stacked")
    assert_alike(answers(tmp_path / "stacked", SINGLE), expected)


def save_stacked(model: PreTrainedModel, path: Path) -> None:
    model.config.save_pretrained(path)
    names = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    assert any(name.endswith("experts.gate_up_proj") for name in names)
    save_file(names, path / "model.safetensors")


def test_layers_that_predict_further_tokens_are_skipped(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 3, "num_nextn_predict_layers": 1}
    path = save(MIXTURES["glm4-moe"](), tmp_path)
    weights = load_file(path / "model.safetensors")
    save_file({**weights, "model.layers.3.eh_proj.weight": torch.ones(2)}, path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"layers\.3\.eh_proj"):
        Driver.load(path)
    changed = json.loads((path / "config.json").read_text()) | config
    (path / "config.json").write_text(json.dumps(changed))
    Driver.load(path)


def test_gpt_oss_computes_its_blocks_of_four_bits(tmp_path: Path) -> None:
    path = save(MIXTURES["gpt-oss"](), tmp_path / "floats")
    floats = load_file(path / "model.safetensors")
    blocks = {}
    for name in [name for name in floats if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = floats.pop(name).shape
        packed, blocks[f"{name}_scales"], values = mxfp4(experts, outputs, inputs)
        blocks[f"{name}_blocks"] = packed.unflatten(2, (-1, 16))
        floats[name] = values.transpose(1, 2).contiguous()
    save_file(floats, path / "model.safetensors")
    others = {name: tensor for name, tensor in floats.items() if f"{name}_blocks" not in blocks}
    config = json.loads((path / "config.json").read_text())
    (tmp_path / "mxfp4").mkdir()
    save_file({**others, **blocks}, tmp_path / "mxfp4/model.safetensors")
    (tmp_path / "mxfp4/config.json").write_text(json.dumps(config | {"quantization_config": _MXFP4}))
    expected = answers(path, SINGLE)
    for found in run_ranks(2, lambda group: answers(tmp_path / "mxfp4", ParallelState(group))):
        assert_alike(found, expected)


@pytest.mark.parametrize("name", ["gpt-oss", "llama4"])
def test_experts_of_one_tensor_are_quantised_on_load(name: str, tmp_path: Path) -> None:
    path = save(MIXTURES[name](), tmp_path)
    (prompt,) = prompts([60])
    scores = []
    for quantization in (None, "int8"):
        driver = Driver.load(path, files=ModelFiles(quantization=quantization))
        driver.add("r", prompt, msgspec.structs.replace(greedy(1), prompt_logprobs=1))
        driver.run()
        scores.append([float(entry.token[0]) for entry in driver.done["r"].prompt_logprobs])
    floats, quantised = torch.tensor(scores)
    assert 0 < (floats - quantised).abs().mean() < 0.1
