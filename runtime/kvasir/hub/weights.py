"""Find the weights of a model and check that the files are whole, without torch.

A safetensors file is 8 bytes of little-endian length, that many bytes of JSON (tensor name → dtype, shape, offsets
into the rest) and the tensors, one after the other without a gap.
"""

import json
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvasir.hub.hub_errors import HubError
from kvasir.hub.other_formats import explain, is_own_weights
from kvasir.hub.reading import LFS_POINTER, read_json, refuse_pointer

_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
# the format's own limit
_MAX_HEADER = 100_000_000
_LENGTH = struct.Struct("<Q")
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


def weight_files(path: Path) -> list[Path]:
    """Return the safetensors files, each checked to be whole. Raises HubError."""
    files = _choose(path)
    for file in files:
        check_safetensors(file)
    return files


def tensor_bytes(files: Sequence[Path]) -> int:
    """Raises HubError for a broken file."""
    return sum(check_safetensors(file) for file in files)


def check_safetensors(file: Path) -> int:
    """Return the bytes of a file's tensors. Raises HubError if its header and size disagree."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            refuse_pointer(file, stream.read(len(LFS_POINTER)))
            stream.seek(0)
            start = stream.read(_LENGTH.size)
            if len(start) < _LENGTH.size:
                raise _broken(file, f"it has {size} bytes" if size else "it is empty")
            (length,) = _LENGTH.unpack(start)
            if length > _MAX_HEADER or _LENGTH.size + length > size:
                raise _broken(file, f"its header would be {length} bytes long and the file has {size}")
            header = stream.read(length)
    except OSError as error:
        raise HubError(f"{file} cannot be read: {error.strerror or error}") from None
    return _check_layout(file, _parse(file, header), size - _LENGTH.size - length)


def bytes_of(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * _BITS[dtype] // 8


@dataclass(frozen=True)
class _Tensor:
    name: str
    begin: int
    end: int
    bits: int


def _choose(path: Path) -> list[Path]:
    if (path / "model.safetensors").exists():
        return [path / "model.safetensors"]
    if (path / _INDEX).exists():
        return _all_there(path, _shards_of_index(path / _INDEX))
    names = sorted(file.name for file in path.glob("*.safetensors") if is_own_weights(file.name))
    if not names:
        raise _no_weights(path)
    return _all_there(path, _with_missing_shards(names))


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
        stem, total = match[1], int(match[3])
        wanted |= {f"{stem}-{number:05}-of-{total:05}.safetensors" for number in range(1, total + 1)}
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
        or f"{path} holds no weights: there is no *.safetensors file. Only safetensors are read; a model that is "
        "published as pytorch_model.bin or GGUF only has to be converted first"
    )


def _parse(file: Path, header: bytes) -> list[_Tensor]:
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError):
        raise _broken(file, "its header is not JSON") from None
    if not isinstance(entries, dict):
        raise _broken(file, "its header is not a JSON object")
    return [_tensor(file, name, entry) for name, entry in entries.items() if name != "__metadata__"]


def _tensor(file: Path, name: str, entry: Any) -> _Tensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, begin, end]
    except (TypeError, KeyError, ValueError):
        raise _broken(file, f"its header describes the tensor {name} as {str(entry)[:200]}") from None
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise _broken(file, f"the tensor {name} has the unknown dtype {dtype!r}")
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise _broken(file, f"the tensor {name} has the shape {shape} at {begin}:{end}")
    return _Tensor(name, begin, end, math.prod(shape) * _BITS[dtype])


def _check_layout(file: Path, tensors: list[_Tensor], size: int) -> int:
    # tensors must fill the `size` bytes behind the header exactly
    position = 0
    for tensor in sorted(tensors, key=lambda tensor: (tensor.begin, tensor.end)):
        if tensor.begin != position:
            raise _broken(file, f"the tensor {tensor.name} begins at byte {tensor.begin} and not at {position}")
        if (tensor.end - tensor.begin) * 8 != tensor.bits:
            raise _broken(
                file,
                f"the tensor {tensor.name} has {tensor.end - tensor.begin} bytes and needs {tensor.bits / 8:g}",
            )
        position = tensor.end
    if position != size:
        state = "was cut off" if position > size else "is too long"
        raise _broken(file, f"it {state}: the tensors take {position} bytes and there are {size}")
    return position


def _broken(file: Path, what: str) -> HubError:
    return HubError(f"{file} is not a whole safetensors file: {what}; download it again")
