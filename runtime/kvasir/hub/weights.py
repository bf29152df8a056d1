"""Find the weights of a model and check that the files are whole, without torch.

Safetensors come first, then pytorch_model.bin, then the links to GGUF files that kvasir.hub.gguf makes.
"""

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

from kvasir.hub.gguf.gguf_file import read_tensors
from kvasir.hub.hub_errors import HubError
from kvasir.hub.other_formats import explain, is_own_weights
from kvasir.hub.reading import LFS_POINTER, read_json, refuse_pointer
from kvasir.hub.safetensors_file import check_safetensors

_KINDS = (("model", "safetensors"), ("pytorch_model", "bin"), ("model", "gguf"))
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.(safetensors|bin|gguf)")


def weight_files(path: Path) -> list[Path]:
    """Return the files with weights, each checked to be whole. Raises HubError."""
    files = _choose(path)
    for file in files:
        check_weights(file)
    return files


def has_weights(path: Path, besides: str = "") -> bool:
    """Return whether files with weights are there, `besides` those with this suffix."""
    return any(_names(path, stem, suffix) for stem, suffix in _KINDS if suffix != besides)


def tensor_bytes(files: Sequence[Path]) -> int:
    """Raises HubError for a broken file."""
    return sum(check_weights(file) for file in files)


def check_weights(file: Path) -> int:
    """Return the bytes of a file's tensors. Raises HubError for a file that is not whole."""
    if file.suffix == ".gguf":
        return sum(tensor.num_bytes for tensor in read_tensors(file).tensors)
    return _check_pickled(file) if file.suffix == ".bin" else check_safetensors(file)


def _check_pickled(file: Path) -> int:
    try:
        with file.open("rb") as stream:
            refuse_pointer(file, stream.read(len(LFS_POINTER)))
        if not zipfile.is_zipfile(file):  # older than torch 1.6, or broken: loading finds out
            return file.stat().st_size
        with zipfile.ZipFile(file) as archive:
            return sum(entry.file_size for entry in archive.infolist() if "/data/" in entry.filename)
    except (OSError, zipfile.BadZipFile) as error:
        raise HubError(f"{file} cannot be read: {error}") from None


def _choose(path: Path) -> list[Path]:
    for stem, suffix in _KINDS:
        if (path / f"{stem}.{suffix}").exists():
            return [path / f"{stem}.{suffix}"]
        index = path / f"{stem}.{suffix}.index.json"
        if index.exists():
            return _all_there(path, _shards_of_index(index))
        if names := _names(path, stem, suffix):
            return _all_there(path, _with_missing_shards(names))
    raise _no_weights(path)


def _names(path: Path, stem: str, suffix: str) -> list[str]:
    # other *.bin files hold states of a training
    pattern = f"{stem}*.bin" if suffix == "bin" else f"*.{suffix}"
    return sorted(file.name for file in path.glob(pattern) if is_own_weights(file.name))


def _shards_of_index(index: Path) -> list[str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise HubError(f"{index}: weight_map, the file of each tensor, is missing or empty: download it again")
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise HubError(f"{index}: weight_map names {name!r}, which is not a file of this directory")
    return sorted(set(weight_map.values()))


def _with_missing_shards(names: list[str]) -> list[str]:
    # names without an index (x-00001-of-00003) have the number of files
    wanted = set(names)
    for match in filter(None, map(_SHARD.fullmatch, names)):
        stem, total, suffix = match[1], int(match[3]), match[4]
        wanted |= {f"{stem}-{number:05}-of-{total:05}.{suffix}" for number in range(1, total + 1)}
    return sorted(wanted)


def _all_there(path: Path, names: list[str]) -> list[Path]:
    missing = [name for name in names if not (path / name).exists()]
    if missing:
        some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise HubError(
            f"{path} lacks {len(missing)} of {len(names)} weight files ({some}): download the model again"
        )
    return [path / name for name in names]


def _no_weights(path: Path) -> HubError:
    return HubError(
        explain(path)
        or f"{path} holds no weights: neither *.safetensors nor pytorch_model.bin nor *.gguf; download it again"
    )
