"""Make a tokenizer.json of other vocabularies, such as vocab.json with merges.txt or a sentencepiece model.

Only transformers can do this, and it imports torch, so a child process runs this module once. The user's cache
keeps the result under a hash of the files.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from kvasir.hub.hub_errors import HubError
from kvasir.hub.reading import read_json_if_any
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
    if not any(file.is_file() for pattern in VOCABULARY_FILES for file in path.glob(pattern)):
        raise HubError(
            f"{path} holds no tokenizer: neither tokenizer.json nor a vocabulary; download the model again"
        )
    target = _cache_directory() / _key(path)
    if (target / "tokenizer.json").exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".convert-") as folder:
            made = Path(folder) / "made"
            _run_child(path, made)
            _publish(made, target)
    except OSError as error:
        raise HubError(
            f"the tokenizer of {path} has to be converted and kept in {target.parent}, which cannot be written "
            f"({error.strerror or error}): set XDG_CACHE_HOME to a writable directory"
        ) from None
    return target


def _cache_directory() -> Path:
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise HubError(
            "a converted tokenizer has to be kept, and this user has no home: set XDG_CACHE_HOME"
        ) from None
    return base / "kvasir" / "tokenizers"


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


def _publish(made: Path, target: Path) -> None:
    # another process uses this result
    try:
        made.rename(target)
    except OSError:
        if not (target / "tokenizer.json").exists():
            raise


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
