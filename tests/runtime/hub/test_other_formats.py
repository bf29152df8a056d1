"""Each format that cannot be served gets its own way out, whether a file or its directory is given."""

import json
from pathlib import Path

import pytest

from kvasir.config.settings import EngineConfig, ModelConfig
from kvasir.hub.hub_errors import HubError
from kvasir.hub.other_formats import explain
from kvasir.local.check_model import check_model

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 64,
    "vocab_size": 8,
}


def message(path: Path) -> str:
    with pytest.raises(HubError) as refused:
        check_model(EngineConfig(ModelConfig(str(path))))
    return str(refused.value)


def directory(path: Path, names: list[str], config: bool) -> Path:
    path.mkdir(parents=True)
    if config:
        (path / "config.json").write_text(json.dumps(CONFIG))
    for name in names:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(b"GGUF")
    return path


@pytest.mark.parametrize("config", [True, False])
@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["consolidated.safetensors"], "weights in consolidated.safetensors, in the format of Mistral"),
        (["consolidated.00.pth", "params.json"], "in the format of Meta"),
        (["model.onnx"], "in the format of ONNX"),
        (["onnx/model.onnx"], "in the format of ONNX"),
        (["tf_model.h5"], "in the format of TensorFlow"),
        (["flax_model.msgpack"], "in the format of Flax"),
        (["weights.npz"], "in the format of MLX"),
        (["openvino_model.xml", "openvino_model.bin"], "in the format of OpenVINO"),
        (["model.pt"], "in the format of another program"),
    ],
)
def test_a_directory_of_another_format_is_explained(
    tmp_path: Path, names: list[str], said: str, config: bool
) -> None:
    assert said in message(directory(tmp_path / "m", names, config))


@pytest.mark.parametrize("config", [True, False])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("consolidated.safetensors", "in the format of Mistral"),
        ("model.onnx", "in the format of ONNX"),
        ("adapter_model.safetensors", "holds a LoRA adapter"),
    ],
)
def test_a_file_is_explained_like_its_directory(tmp_path: Path, name: str, said: str, config: bool) -> None:
    path = directory(tmp_path / "m", [name], config)
    assert said in message(path / name)
    assert said in message(path)


def test_a_file_of_a_whole_model_asks_for_its_directory(tmp_path: Path) -> None:
    path = directory(tmp_path / "m", ["model.safetensors", "pytorch_model.bin"], config=True)
    for name in ("config.json", "model.safetensors", "pytorch_model.bin"):
        assert "is a file: give the directory that holds" in message(path / name)


@pytest.mark.parametrize("config", [True, False])
def test_an_adapter_names_its_base_and_the_merge(tmp_path: Path, config: bool) -> None:
    path = directory(tmp_path / "m", ["adapter_model.safetensors", "training_args.bin"], config)
    (path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base", "peft_type": "LORA"}')
    said = message(path)
    assert f"{path} holds a LoRA adapter of org/base, not a model" in said
    assert "merge_and_unload" in said


@pytest.mark.parametrize("config", [True, False])
def test_leftovers_of_a_training_are_no_weights(tmp_path: Path, config: bool) -> None:
    names = ["training_args.bin", "optimizer.pt", "rng_state_0.pth", "scheduler.pt"]
    path = directory(tmp_path / "m", names, config)
    said = message(path)
    assert "what a training continues from (optimizer.pt, rng_state_0.pth, scheduler.pt)" in said
    assert "its weights in" not in said


@pytest.mark.parametrize("inner", ["checkpoint-500", "snapshots/0123", "merged"])
def test_the_model_inside_a_directory_is_named(tmp_path: Path, inner: str) -> None:
    directory(tmp_path / "m" / inner, ["model.safetensors"], config=True)
    (tmp_path / "m" / "optimizer.pt").touch()
    assert message(tmp_path / "m") == (
        f"{tmp_path}/m holds no model itself: give {tmp_path}/m/{inner}, which has a config.json"
    )


def test_leftovers_next_to_weights_change_nothing(tmp_path: Path) -> None:
    path = directory(tmp_path / "m", ["model.safetensors", "optimizer.pt", "x.gguf"], config=True)
    assert message(path).startswith(f"{path}/model.safetensors is not a whole safetensors file")


def test_an_unknown_directory_has_no_explanation(tmp_path: Path) -> None:
    assert explain(directory(tmp_path / "m", ["README.md"], config=False)) is None
    assert "holds no model: it has no config.json" in message(tmp_path / "m")


def test_pickled_weights_without_a_config_are_explained(tmp_path: Path) -> None:
    names = ["pytorch_model-00001-of-00002.bin", "training_args.bin"]
    path = directory(tmp_path / "m", names, config=False)
    assert f"{path} has its weights in {names[0]} and lacks config.json" in message(path)
