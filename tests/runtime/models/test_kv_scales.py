import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvasir.hub.model_info import load_model_info
from kvasir.hub.weights import weight_files
from kvasir.layers.attention import KVScales
from kvasir.layers.parameter import Placement
from kvasir.models.kv_scales import is_kv_scale, read_kv_scales
from kvasir.models.load_model import load_model
from kvasir.models.model_load_error import ModelLoadError
from runtime.models.tiny import MODELS, llama, save

LAYER = "model.layers.1.self_attn"


def read(path: Path, scales: dict[str, torch.Tensor]) -> dict[int, KVScales]:
    save_file({"model.layers.1.mlp.up_proj.weight": torch.ones(2, 2), **scales}, path / "model.safetensors")
    return read_kv_scales(weight_files(path), 2)


@pytest.mark.parametrize(
    ("k", "v"),
    [
        (f"{LAYER}.k_scale", f"{LAYER}.v_scale"),
        (f"{LAYER}.attn.k_scale", f"{LAYER}.attn.v_scale"),
        (f"{LAYER}.k_proj.k_scale", f"{LAYER}.v_proj.v_scale"),
        (f"{LAYER}.qkv_proj.k_scale", f"{LAYER}.qkv_proj.v_scale"),
        ("transformer.h.1.attn.k_scale", "transformer.h.1.attn.v_scale"),
        ("h.1.attn.k_scale", "h.1.attn.v_scale"),
        ("1.attention.k_scale", "1.attention.v_scale"),
    ],
)
def test_each_name_is_read(k: str, v: str, tmp_path: Path) -> None:
    found = read(tmp_path, {k: torch.tensor([0.5]).bfloat16(), v: torch.tensor(0.25)})
    assert found == {1: KVScales(0.5, 0.25)}


def test_an_old_scale_is_that_of_k_and_v(tmp_path: Path) -> None:
    assert read(tmp_path, {f"{LAYER}.kv_scale": torch.tensor(0.5)}) == {1: KVScales(0.5, 0.5)}


def test_scales_of_queries_and_weights_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    others = {f"{LAYER}.q_scale": torch.ones(1), f"{LAYER}.attn.prob_scale": torch.ones(1)}
    assert all(map(is_kv_scale, others))
    assert read(tmp_path, others) == {}
    assert "no scales for an fp8 KV cache" in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        f"{LAYER}.k_proj.weight",
        f"{LAYER}.k_proj.weight_scale",
        f"{LAYER}.k_proj.v_scale",
        f"{LAYER}.k_norm.weight",
        "model.layers.1.mlp.k_scale",
        "model.self_attn.k_scale",
    ],
)
def test_other_tensors_are_not_scales(name: str) -> None:
    assert not is_kv_scale(name)


@pytest.mark.parametrize(
    ("scales", "problem"),
    [
        ({"k_scale": torch.ones(1)}, "no scale of V for layer 1"),
        ({"v_scale": torch.ones(1)}, "no scale of K for layer 1"),
        ({"k_scale": torch.ones(4), "v_scale": torch.ones(4)}, r"\.k_scale' .* has 4 numbers"),
        ({"k_scale": torch.zeros(1), "v_scale": torch.ones(1)}, r"\.k_scale' .* is 0\.0"),
        ({"k_scale": torch.ones(1), "v_scale": torch.tensor(torch.nan)}, r"\.v_scale' .* is nan"),
        ({"k_scale": torch.ones(1), "kv_scale": torch.ones(1)}, "is the second scale of K"),
    ],
)
def test_unusable_scales_are_named(scales: dict[str, torch.Tensor], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=problem):
        read(tmp_path, {f"{LAYER}.{name}": scale for name, scale in scales.items()})


def test_a_scale_of_no_layer_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ModelLoadError, match=r"layers\.2\.self_attn\.k_scale' .* no place in this model of 2 layers"
    ):
        read(tmp_path, {"model.layers.2.self_attn.k_scale": torch.ones(1)})


@pytest.mark.parametrize("name", ["llama-gqa", "gpt2", "phi", "qwen3-moe"])
def test_a_model_loads_without_regard_to_scales(name: str, tmp_path: Path) -> None:
    path = save(MODELS[name](), tmp_path)
    file = path / "model.safetensors"
    tensors = load_file(file)
    attention = next(tensor.rpartition(".1.")[0] for tensor in tensors if ".1." in tensor)
    module = "attn" if name == "gpt2" else "self_attn"
    scales = {f"{attention}.1.{module}.{part}_scale": torch.ones(1) for part in "kv"}
    save_file(tensors | scales, file)
    config = json.loads((path / "config.json").read_text())
    scheme = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": {"num_bits": 8}}
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": scheme}))
    placement = Placement(torch.device("cpu"), torch.float32)
    seen: list[tuple[int, int]] = []
    load_model(load_model_info(path), placement, 16, lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1], "the bytes of the scales count as done"
    assert read_kv_scales(weight_files(path), 3) == {1: KVScales()}


def test_a_scale_in_a_wrong_place_is_an_unknown_tensor(tmp_path: Path) -> None:
    path = save(llama(), tmp_path)
    file = path / "model.safetensors"
    save_file(load_file(file) | {"model.layers.0.mlp.k_scale": torch.ones(1)}, file)
    with pytest.raises(ModelLoadError, match=r"mlp\.k_scale.* no place"):
        load_model(load_model_info(path), Placement(torch.device("cpu"), torch.float32), 16, lambda a, b: None)
