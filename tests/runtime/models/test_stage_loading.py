import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import OlmoConfig

from kvasir.hub.model_info import load_model_info
from kvasir.layers.linear import Linear, StackedLinear
from kvasir.layers.parameter import Placement
from kvasir.models.checkpoints.open_checkpoint import SafetensorsTensor
from kvasir.models.load_model import load_model
from kvasir.models.model_load_error import ModelLoadError
from kvasir.parallel.parallel_state import ParallelState
from runtime.models.tiny import MODELS, decoder, save
from runtime.parallel.thread_group import Meeting, ThreadGroup

TIED = {"llama-mha-tied": "model.embed_tokens.weight", "gpt2": "transformer.wte.weight"}
ONE_OF_EACH = ["llama-gqa", "llama-mha-tied", "gpt2", "qwen3-moe", "gemma3", "phi", "phi3"]


def load(
    path: Path,
    stage: int,
    stages: int,
    *,
    ranks: int = 1,
    load_format: str = "safetensors",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> torch.nn.Module:
    parallel = ParallelState(ThreadGroup(0, Meeting(ranks)), ThreadGroup(stage, Meeting(stages)))
    placement = Placement(torch.device("cpu"), torch.float32, parallel)
    model = load_model(load_model_info(path), placement, 64, progress, load_format)
    assert isinstance(model, torch.nn.Module)
    return model


def refusals(path: Path, stages: int) -> list[str]:
    """Return by stage why it cannot be loaded; "" for a stage that can."""

    def refusal(stage: int) -> str:
        try:
            load(path, stage, stages)
        except ModelLoadError as error:
            return str(error)
        return ""

    return [refusal(stage) for stage in range(stages)]


def edit(path: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")


class Reads:
    """The bytes and the tensors that were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_bytes = 0
        self.names: set[str] = set()
        self._lock = threading.Lock()
        read_part = SafetensorsTensor.__getitem__

        def count(tensor: SafetensorsTensor, part: tuple[slice, ...]) -> Tensor:
            piece = read_part(tensor, part)
            with self._lock:  # several threads read
                self.num_bytes += piece.nbytes
                self.names.add(tensor.origin.name)
            return piece

        monkeypatch.setattr(SafetensorsTensor, "__getitem__", count)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_stage_reads_the_tensors_that_it_holds(
    name: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(MODELS[name](), tmp_path)
    whole = dict(load(path, 0, 1, ranks=ranks).named_parameters())
    held: list[str] = []
    read: list[str] = []
    for stage in range(3):
        reads = Reads(monkeypatch)
        parameters = dict(load(path, stage, 3, ranks=ranks).named_parameters())
        monkeypatch.undo()
        assert all(torch.equal(parameter, whole[key]) for key, parameter in parameters.items())
        assert reads.num_bytes == sum(parameter.nbytes for parameter in parameters.values())
        held += parameters
        read += reads.names
    twice = 1 if name in TIED or name == "gemma3" else 0  # a tied weight
    assert set(held) == set(whole)
    assert len(held) == len(whole) + twice
    assert set(read) == set(load_file(path / "model.safetensors"))
    assert len(read) == len(set(read)) + twice


def test_the_layers_of_a_stage_have_the_names_of_the_whole_model(tmp_path: Path) -> None:
    model = load(save(MODELS["llama-gqa"](), tmp_path), 1, 2)
    layers = {
        name: layer.name for name, layer in model.named_modules() if isinstance(layer, Linear | StackedLinear)
    }
    assert all(name == own for name, own in layers.items())
    assert set(layers) == {
        "layers.2.self_attn.qkv_proj",
        "layers.2.self_attn.o_proj",
        "layers.2.mlp.gate_up_proj",
        "layers.2.mlp.down_proj",
        "lm_head",
    }


@pytest.mark.parametrize(
    ("missing", "stages"),
    [
        ("model.embed_tokens.weight", [0]),
        ("model.layers.0.self_attn.k_proj.weight", [0]),
        ("model.layers.1.mlp.up_proj.weight", [1]),
        ("model.layers.2.input_layernorm.weight", [2]),
        ("model.norm.weight", [2]),
        ("lm_head.weight", [2]),
    ],
)
def test_the_stage_of_a_missing_tensor_reports_it(missing: str, stages: list[int], tmp_path: Path) -> None:
    path = save(MODELS["llama-gqa"](), tmp_path)
    edit(path, lambda tensors: tensors.pop(missing))
    found = refusals(path, 3)
    assert [stage for stage, refusal in enumerate(found) if "no weights for" in refusal] == stages


@pytest.mark.parametrize(
    ("unknown", "stages"),
    [
        ("model.layers.1.self_attn.q_norm.weight", [1]),
        ("model.norm.bias", [2]),
        ("lm_head.bias", [2]),
        ("model.embed_tokens.bias", [0]),
        ("model.layers.3.input_layernorm.weight", [0, 1, 2]),
        ("model.other.0.weight", [0, 1, 2]),
        ("norms.weight", [0, 1, 2]),
    ],
)
def test_an_unknown_tensor_is_reported_by_a_stage(unknown: str, stages: list[int], tmp_path: Path) -> None:
    path = save(MODELS["llama-gqa"](), tmp_path)
    edit(path, lambda tensors: tensors.update({unknown: torch.ones(64)}))
    found = refusals(path, 3)
    assert [stage for stage, refusal in enumerate(found) if f"{unknown!r}" in refusal] == stages


@pytest.mark.parametrize("name", list(TIED))
def test_a_tied_weight_that_is_there_twice_must_be_equal(name: str, tmp_path: Path) -> None:
    path = save(MODELS[name](), tmp_path)
    edit(path, lambda tensors: tensors.update({"lm_head.weight": tensors[TIED[name]].clone()}))
    assert refusals(path, 3) == ["", "", ""]
    edit(path, lambda tensors: tensors.update({"lm_head.weight": tensors[TIED[name]] + 1}))
    first, middle, last = refusals(path, 3)
    assert "tie_word_embeddings" in first
    assert middle == ""
    assert "tie_word_embeddings" in last


@pytest.mark.parametrize("name", list(TIED))
def test_a_missing_tied_weight_is_missed_at_both_ends(name: str, tmp_path: Path) -> None:
    path = save(MODELS[name](), tmp_path)
    edit(path, lambda tensors: tensors.pop(TIED[name]))
    assert ["no weights for" in refusal for refusal in refusals(path, 3)] == [True, False, True]


@pytest.mark.parametrize("stage", range(3))
def test_each_stage_counts_the_bytes_of_the_whole_checkpoint(stage: int, tmp_path: Path) -> None:
    path = save(MODELS["llama-gqa"](), tmp_path)
    size = sum(tensor.nbytes for tensor in load_file(path / "model.safetensors").values())
    seen: list[tuple[int, int]] = []
    load(path, stage, 3, progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (0, size)
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)


@pytest.mark.parametrize("name", ["llama-mha-tied", "qwen3-moe", "gpt2"])
def test_stages_have_the_dummy_weights_of_the_whole_model(name: str, tmp_path: Path) -> None:
    path = save(MODELS[name](), tmp_path)
    (path / "model.safetensors").unlink()
    whole = dict(load(path, 0, 1, load_format="dummy").named_parameters())
    held: set[str] = set()
    for stage in range(3):
        parameters = dict(load(path, stage, 3, load_format="dummy").named_parameters())
        assert all(torch.equal(parameter, whole[key]) for key, parameter in parameters.items())
        held |= parameters.keys()
    assert held == set(whole)


def test_more_stages_than_layers_are_refused(tmp_path: Path) -> None:
    path = save(MODELS["gpt2"](), tmp_path)
    with pytest.raises(ModelLoadError, match=r"--pipeline-parallel-size 4 .* n_layer = 3 .*choose at most 3$"):
        load(path, 0, 4)


def test_code_of_transformers_is_not_split_into_stages(tmp_path: Path) -> None:
    path = save(decoder(OlmoConfig), tmp_path)
    with pytest.raises(ModelLoadError, match=r"OlmoForCausalLM .*--pipeline-parallel-size 1$"):
        load(path, 0, 2)
