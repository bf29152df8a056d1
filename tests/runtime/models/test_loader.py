import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from kvasir.hub.model_info import load_model_info
from kvasir.hub.weights import weight_files
from kvasir.layers.parameter import Placement
from kvasir.models.load_model import load_model
from kvasir.models.model_load_error import ModelLoadError
from runtime.models.tiny import MODELS, gpt2, llama, save
from runtime.worker.driver import Driver, greedy

Tensors = dict[str, torch.Tensor]
PROMPT = list(range(2, 32))


def load(path: Path) -> None:
    placement = Placement(torch.device("cpu"), torch.float32)
    load_model(load_model_info(path), placement, 16, lambda done, total: None)


def greedy_tokens(path: Path) -> list[int]:
    driver = Driver.load(path)
    driver.add("r", PROMPT, greedy(8))
    return driver.run()["r"]


def edit(path: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")


def rename(path: Path, change: Callable[[str], str]) -> None:
    def apply(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[change(name)] = tensors.pop(name)

    edit(path, apply)


@pytest.mark.parametrize("name", list(MODELS))
def test_no_tensor_may_be_missing(name: str, tmp_path: Path) -> None:
    path = save(MODELS[name](), tmp_path)
    whole = load_file(path / "model.safetensors")
    for missing in sorted(whole):
        if ".1." in missing or ".2." in missing:
            continue  # layers are alike
        save_file({key: value for key, value in whole.items() if key != missing}, path / "model.safetensors")
        with pytest.raises(ModelLoadError, match=r"no weights for .*(weight|bias)"):
            load(path)


def test_a_missing_shard_of_a_fused_parameter_is_named(tmp_path: Path) -> None:
    path = save(llama(), tmp_path)
    edit(path, lambda tensors: tensors.pop("model.layers.1.self_attn.k_proj.weight"))
    with pytest.raises(ModelLoadError, match=r"layers\.1\.self_attn\.qkv_proj\.weight \(k_proj\)"):
        load(path)


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    path = save(llama(), tmp_path)
    edit(path, lambda tensors: tensors.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(16)}))
    with pytest.raises(ModelLoadError, match=r"model\.layers\.0\.self_attn\.q_norm\.weight.* no place"):
        load(path)


@pytest.mark.parametrize(
    ("build", "name"),
    [(llama, "model.layers.0.mlp.up_proj.weight"), (gpt2, "transformer.h.0.mlp.c_fc.weight")],
)
def test_a_wrong_shape_is_named_with_both_shapes(
    build: Callable[[], PreTrainedModel], name: str, tmp_path: Path
) -> None:
    path = save(build(), tmp_path)
    shape = list(load_file(path / "model.safetensors")[name].shape)
    edit(path, lambda tensors: tensors.update({name: torch.zeros(shape[0] + 1, shape[1])}))
    with pytest.raises(ModelLoadError) as refused:
        load(path)
    assert name in str(refused.value)
    assert str([shape[0] + 1, shape[1]]) in str(refused.value)
    assert str(shape) in str(refused.value)


def test_a_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    path = save(llama(), tmp_path)
    edit(path, lambda tensors: tensors.update({"norm.weight": tensors["model.norm.weight"].clone()}))
    with pytest.raises(ModelLoadError, match=r"norm\.weight.*loaded before"):
        load(path)


def test_integers_without_a_quantization_config_are_refused(tmp_path: Path) -> None:
    path = save(llama(), tmp_path)
    name = "model.layers.0.mlp.up_proj.weight"
    edit(path, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))
    with pytest.raises(ModelLoadError, match=r"torch\.int8.*quantization_config"):
        load(path)


def test_gpt2_loads_without_prefix_and_with_old_buffers(tmp_path: Path) -> None:
    path = save(gpt2(), tmp_path)
    expected = greedy_tokens(path)
    rename(path, lambda name: name.removeprefix("transformer."))
    mask = {"h.0.attn.bias": torch.ones(1, 1, 256, 256), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    edit(path, lambda tensors: tensors.update(mask))
    assert greedy_tokens(path) == expected


def test_llama_loads_without_prefix_and_with_frequencies(tmp_path: Path) -> None:
    path = save(llama(), tmp_path)
    expected = greedy_tokens(path)
    rename(path, lambda name: name.removeprefix("model."))
    edit(path, lambda tensors: tensors.update({"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    assert greedy_tokens(path) == expected


@pytest.mark.parametrize(
    ("name", "embedding"),
    [
        ("llama-mha-tied", "model.embed_tokens.weight"),
        ("qwen2", "model.embed_tokens.weight"),
        ("gemma3", "model.embed_tokens.weight"),
        ("gpt2", "transformer.wte.weight"),
    ],
)
def test_a_tied_weight_may_stand_there_twice_if_it_is_the_same(name: str, embedding: str, tmp_path: Path) -> None:
    path = save(MODELS[name](), tmp_path)
    expected = greedy_tokens(path)
    edit(path, lambda tensors: tensors.update({"lm_head.weight": tensors[embedding].clone()}))
    assert greedy_tokens(path) == expected
    edit(path, lambda tensors: tensors.update({"lm_head.weight": tensors[embedding] + 1}))
    with pytest.raises(ModelLoadError, match=r"lm_head\.weight.*tie_word_embeddings"):
        load(path)


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3-moe", "gemma2", "phi3", "phi"])
def test_a_sharded_checkpoint_loads_like_a_single_file(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="150KB")
    assert len(weight_files(tmp_path / "many")) > 2
    assert greedy_tokens(tmp_path / "many") == greedy_tokens(tmp_path / "one")


def test_progress_counts_bytes_up_to_all(tmp_path: Path) -> None:
    path = save(llama(), tmp_path)
    seen: list[tuple[int, int]] = []
    Driver.load(path, progress=lambda done, total: seen.append((done, total)))
    size = sum(tensor.nbytes for tensor in load_file(path / "model.safetensors").values())
    assert seen[0] == (0, size)
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)


def test_checkpoints_in_another_precision_are_converted(tmp_path: Path) -> None:
    half = llama().half()
    half.save_pretrained(tmp_path / "half")
    half.float().save_pretrained(tmp_path / "full")
    assert greedy_tokens(tmp_path / "half") == greedy_tokens(tmp_path / "full")


def test_a_config_of_another_architecture_is_refused(tmp_path: Path) -> None:
    path = save(llama(), tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"architectures": ["MambaForCausalLM"]}))
    with pytest.raises(ModelLoadError, match="transformers cannot load this MambaForCausalLM"):
        load(path)
