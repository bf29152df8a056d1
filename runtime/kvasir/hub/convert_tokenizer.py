"""Make a tokenizer.json of other vocabularies, such as vocab.json with merges.txt or a sentencepiece model.

Only transformers can do this, except for Mistral's tekken.json. It imports torch, so a child process runs this
module once. The user's cache keeps the result under a hash of the files.
"""

import hashlib
import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from kvasir.hub.gguf.gguf_model import NO_TOKENIZER
from kvasir.hub.hub_errors import HubError
from kvasir.hub.made_once import made_once
from kvasir.hub.reading import read_json_if_any
from kvasir.hub.tekken import TEKKEN, convert_tekken
from kvasir.hub.tokenizer_files import VOCABULARY_FILES, canonical_json, tokenizer_hash

_TIMEOUT = 600.0
_NO_TRANSFORMERS = 3
# libraries with which transformers reads vocabularies
_READERS = ("sentencepiece", "tiktoken")
_BY_HAND = (
    "make one where transformers is installed, AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR), and put "
    "the tokenizer.json next to config.json"
)


def tokenizer_directory(path: Path) -> Path:
    """Return the directory with a tokenizer.json, made if necessary. Raises HubError."""
    return path if (path / "tokenizer.json").exists() else converted_tokenizer(path)


def converted_tokenizer(path: Path) -> Path:
    """Raises HubError."""
    if (path / NO_TOKENIZER).exists():
        raise HubError((path / NO_TOKENIZER).read_text())
    if not any(file.is_file() for pattern in VOCABULARY_FILES for file in path.glob(pattern)):
        raise HubError(
            f"{path} holds no tokenizer: neither tokenizer.json nor a vocabulary; download the model again"
        )
    make = partial(convert_tekken, path / TEKKEN) if (path / TEKKEN).exists() else partial(_run_child, path)
    return made_once("tokenizers", _key(path), f"the tokenizer of {path}", make)


def _key(path: Path) -> str:
    # without a tokenizer_class, transformers goes by the model's type
    model_type = read_json_if_any(path / "config.json").get("model_type")
    return hashlib.sha256(canonical_json([model_type, tokenizer_hash(path)])).hexdigest()[:32]


def _run_child(path: Path, folder: Path) -> None:
    # no look-ups on the network, no imports from the working directory (-P)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    command = [sys.executable, "-P", "-m", __name__, str(path.absolute()), str(folder)]
    try:
        child = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        raise HubError(f"converting the tokenizer of {path} took more than {_TIMEOUT:.0f} s: {_BY_HAND}") from None
    if child.returncode == _NO_TRANSFORMERS:
        raise HubError(
            f"{path} has no tokenizer.json, and transformers, which could make one, is not installed here "
            f"({child.stderr.strip()}): install it, or {_BY_HAND}"
        )
    if child.returncode != 0 or not (folder / "tokenizer.json").exists():
        lines = child.stderr.strip().splitlines() or [f"exit status {child.returncode}"]
        missing = [module for module in _READERS if find_spec(module) is None]
        install = f"pip install {' '.join(missing)}, or " if missing else ""
        raise HubError(
            f"{path} has no tokenizer.json and transformers could not make one ({lines[-1]}): {install}{_BY_HAND}"
        )


def main(path: str, folder: str) -> int:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        print(error, file=sys.stderr)
        return _NO_TRANSFORMERS
    try:
        AutoTokenizer.from_pretrained(path, local_files_only=True).save_pretrained(folder)
    except Exception as error:  # the parent reports it in one line
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
