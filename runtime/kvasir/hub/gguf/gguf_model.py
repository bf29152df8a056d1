"""The directory of a model in GGUF: config and tokenizer made of the file's header, and links to the files.

The rest of the program reads it as a model's directory. It is kept in the user's cache.
"""

import hashlib
import json
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from kvasir.hub.gguf.gguf_config import config_of
from kvasir.hub.gguf.gguf_file import GGUFHeader, parse_header
from kvasir.hub.gguf.gguf_metadata import Metadata, shortest
from kvasir.hub.gguf.gguf_tokenizer import GGUFVocabulary
from kvasir.hub.gguf.kept_layers import GGUF, kept_layers
from kvasir.hub.hub_errors import HubError
from kvasir.hub.made_once import cache_of, made_once
from kvasir.hub.reading import write_json

# raise it when the files of a directory change
_FORMAT: Final = 3
# A divisor for each frequency of a rotary embedding.
_MAX_SMALL_BYTES: Final = 4096
_KIND: Final = "gguf"
NO_TOKENIZER: Final = "no_tokenizer.txt"
_SAMPLING: Final = (
    ("temp", "temperature"), ("top_k", "top_k"), ("top_p", "top_p"), ("min_p", "min_p"),
    ("penalty_repeat", "repetition_penalty"),
)  # fmt: skip
# Opens a part of the model, and returns its size, too. The first part has the metadata.
OpenPart = Callable[[], tuple[BinaryIO, int]]


def local_directory(files: Sequence[Path]) -> Path:
    """Return the directory of a model whose parts are these files. Raises HubError."""
    try:
        files[0].open("rb").close()
        facts = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    except OSError as error:
        raise HubError(f"{files[0]} cannot be read: {error.strerror or error}") from None
    directory = described_directory(str(files[0]), json.dumps(facts), [partial(open_file, file) for file in files])
    link_weights(directory, files)
    return directory


def described_directory(name: str, identity: str, parts: Sequence[OpenPart]) -> Path:
    """Return the directory of a model without its weights. Raises HubError."""
    key = hashlib.sha256(f"{_FORMAT} {identity}".encode()).hexdigest()[:32]
    return made_once(_KIND, key, name, partial(_describe, name, parts))


def link_weights(directory: Path, files: Sequence[Path]) -> None:
    names = ["model.gguf"]
    if len(files) > 1:
        names = [f"model-{number:05}-of-{len(files):05}.gguf" for number in range(1, len(files) + 1)]
    for name, file in zip(names, files, strict=True):
        with suppress(FileExistsError):
            os.symlink(file.absolute(), directory / name)


def remember(source: str, directory: Path) -> None:
    """Keep the directory of a source for a start without a network."""
    link = _link_of(source, directory.parent)
    link.parent.mkdir(exist_ok=True)
    new = link.with_name(f"{link.name}.{os.getpid()}")
    new.symlink_to(directory)
    new.replace(link)


def remembered(source: str) -> Path | None:
    link = _link_of(source, cache_of(source) / _KIND)
    return link.resolve() if link.exists() else None


def _link_of(source: str, folder: Path) -> Path:
    return folder / "sources" / hashlib.sha256(source.encode()).hexdigest()[:32]


def open_file(file: Path) -> tuple[BinaryIO, int]:
    return file.open("rb"), file.stat().st_size


def _describe(name: str, parts: Sequence[OpenPart], folder: Path) -> None:
    small: dict[str, list[float]] = {}
    digest = hashlib.sha256()
    headers = [_read(name, open_part, small, digest) for open_part in parts]
    header = replace(headers[0], tensors=tuple(tensor for part in headers for tensor in part.tensors))
    metadata = Metadata(header, name)
    config = config_of(metadata, small)
    config["dtype"] = _dtype(header)
    # Frontends have no weights, and compare this with the engine's.
    config["quantization_config"] = {
        "quant_method": GGUF,
        "header": digest.hexdigest(),
        "kept": kept_layers(config["model_type"], header.tensors),
    }
    try:
        vocabulary = GGUFVocabulary(metadata)
        tokenizer = vocabulary.tokenizer_json()
    except HubError as error:  # --tokenizer may name another
        (folder / NO_TOKENIZER).write_text(f"{name}: {error}: give --tokenizer with the tokenizer of its origin")
    else:
        if ends := vocabulary.end_ids():
            config["eos_token_id"] = ends
        write_json(folder / "tokenizer.json", tokenizer)
        write_json(folder / "tokenizer_config.json", vocabulary.tokenizer_config())
    write_json(folder / "config.json", config)
    if sampling := _sampling(metadata):
        write_json(folder / "generation_config.json", sampling)


def _read(name: str, open_part: OpenPart, small: dict[str, list[float]], digest: "hashlib._Hash") -> GGUFHeader:
    stream, size = open_part()
    with stream:
        header = parse_header(stream, size, name)
        stream.seek(0)
        digest.update(stream.read(header.num_bytes))
        for tensor in header.tensors:
            if tensor.name.startswith("rope_") and tensor.type == "F32" and tensor.num_bytes <= _MAX_SMALL_BYTES:
                stream.seek(tensor.start)
                numbers = struct.unpack(f"<{tensor.num_bytes // 4}f", stream.read(tensor.num_bytes))
                small[tensor.name] = list(map(shortest, numbers))
    return header


def _dtype(header: GGUFHeader) -> str:
    # matrices only: norms are always F32
    types = {tensor.type for tensor in header.tensors if len(tensor.shape) > 1}
    # Gemma's activations exceed float16.
    if types == {"F16"} and not header.architecture.startswith("gemma"):
        return "float16"
    return "float32" if types == {"F32"} else "bfloat16"


def _sampling(metadata: Metadata) -> dict[str, Any]:
    values = {name: metadata.of_file(f"general.sampling.{key}") for key, name in _SAMPLING}
    return {
        name: shortest(value) if isinstance(value, float) else value
        for name, value in values.items()
        if value is not None
    }
