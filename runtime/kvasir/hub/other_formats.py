"""Explain a path without a model in safetensors."""

import json
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from kvasir.hub.reading import read_json_if_any

# of a training; without weights that can be served
_LEFTOVERS: Final = (
    *("training_args*.bin", "optimizer*", "scheduler*", "scaler*", "rng_state*", "random_states*", "*.distcp"),
    *("trainer_state.json", "*_optim_states.pt", "*_model_states.pt"),
)
_NOT_WEIGHTS: Final = ("consolidated*", "adapter_*", *_LEFTOVERS)


def is_own_weights(name: str) -> bool:
    return not any(fnmatch(name, pattern) for pattern in _NOT_WEIGHTS)


def explain(path: Path) -> str | None:
    """Return what to do with a file or directory in a known format, or None."""
    if path.is_dir():
        sentence = _of_directory(path)
        return None if sentence is None else f"{path} {sentence}"
    sentence = _of_file(path)
    return None if sentence is None else f"{path} is a file, and its directory {sentence}"


def _of_file(path: Path) -> str | None:
    folder = path.parent
    if path.name.startswith("adapter_"):
        return _adapter(folder)
    has_model = (folder / "config.json").exists() and any(
        is_own_weights(file.name) for file in folder.glob("*.safetensors")
    )
    return None if has_model else _of_names(folder, [path.name])


def _of_directory(path: Path) -> str | None:
    names = sorted(file.name for file in path.iterdir())
    if any(name.startswith("adapter_") for name in names):
        return _adapter(path)
    return _of_names(path, names) or _of_parts(path, names)


def _of_names(path: Path, names: list[str]) -> str | None:
    for pattern, sentence in _FORMATS:
        for name in names:
            if fnmatch(name.lower(), pattern) and not any(fnmatch(name, other) for other in _LEFTOVERS):
                return sentence(path, name)
    return None


def _of_parts(path: Path, names: list[str]) -> str | None:
    inner = next(_models_within(path), None)
    if inner is not None:
        return f"holds no model itself: give {inner}, which has a config.json"
    left = [name for name in names if any(fnmatch(name, pattern) for pattern in _LEFTOVERS)]
    if left:
        return (
            f"holds what a training continues from ({', '.join(left[:3])}) and no weights: give the directory that "
            "the trainer saved the model to, with model.safetensors"
        )
    return None


def _models_within(path: Path) -> Iterator[Path]:
    # the latest checkpoint of a training, a snapshot of the cache, or another directory
    for pattern in ("snapshots/*", "checkpoint-*", "*"):
        found = [file.parent for file in path.glob(f"{pattern}/config.json")]
        yield from sorted(found, key=lambda folder: (folder / "config.json").stat().st_mtime, reverse=True)


def _adapter(path: Path) -> str:
    base = read_json_if_any(path / "adapter_config.json").get("base_model_name_or_path")
    of = f" of {base}" if isinstance(base, str) and base else ""
    return (
        f"holds a LoRA adapter{of}, not a model: merge it where peft is installed, AutoPeftModelForCausalLM."
        f"from_pretrained({json.dumps(str(path))}).merge_and_unload().save_pretrained(DIR), add the tokenizer's "
        "files, and give DIR"
    )


def _pickled(_: Path, name: str) -> str:
    return f"has its weights in {name} and lacks config.json: add it from the model's repository"


def _published(program: str) -> Callable[[Path, str], str]:
    def sentence(_: Path, name: str) -> str:
        return (
            f"has its weights in {name}, in the format of {program}, and only safetensors in the format of "
            "transformers are read: give the model's version for transformers, with config.json and "
            "model.safetensors"
        )

    return sentence


# most specific first
_FORMATS: Final = (
    ("*.ggml", _published("llama.cpp")),
    ("ggml-*.bin", _published("llama.cpp")),
    ("pytorch_model*.bin", _pickled),
    ("consolidated*.safetensors", _published("Mistral")),
    ("consolidated*.pth", _published("Meta")),
    ("*.onnx", _published("ONNX")),
    ("onnx", _published("ONNX")),
    ("openvino_model*", _published("OpenVINO")),
    ("tf_model*.h5", _published("TensorFlow")),
    ("flax_model*.msgpack", _published("Flax")),
    ("*.nemo", _published("NeMo")),
    ("*.npz", _published("MLX")),
    ("model_index.json", _published("diffusers")),
    ("*.bin", _published("another program")),
    ("*.pth", _published("another program")),
    ("*.pt", _published("another program")),
)
