"""Check that a safetensors file is whole, without torch.

A safetensors file is 8 bytes of little-endian length, that many bytes of JSON (tensor name → dtype, shape, offsets
into the rest) and the tensors, one after the other without a gap.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kvasir.hub.hub_errors import HubError
from kvasir.hub.reading import LFS_POINTER, refuse_pointer

# the format's own limit
_MAX_HEADER = 100_000_000
_LENGTH = struct.Struct("<Q")
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


def check_safetensors(file: Path) -> int:
    """Return the bytes of a file's tensors. Raises HubError if its header and size disagree."""
    return sum(tensor.end - tensor.begin for tensor in _tensors(file))


def tensor_shapes(file: Path) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes by name. Raises HubError for a file that is not whole."""
    return {tensor.name: tensor.shape for tensor in _tensors(file)}


def tensor_shapes_in(stream: BinaryIO, size: int, file: Path) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes by name from a file of `size` bytes, of which only the header is read. `file`: its name."""
    return {tensor.name: tensor.shape for tensor in _header(stream, size, file)}


def bytes_of(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * _BITS[dtype] // 8


@dataclass(frozen=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    begin: int
    end: int
    bits: int


def _tensors(file: Path) -> list[_Tensor]:
    try:
        with file.open("rb") as stream:
            return _header(stream, file.stat().st_size, file)
    except OSError as error:
        raise HubError(f"{file} cannot be read: {error.strerror or error}") from None


def _header(stream: BinaryIO, size: int, file: Path) -> list[_Tensor]:
    refuse_pointer(file, stream.read(len(LFS_POINTER)))
    stream.seek(0)
    start = stream.read(_LENGTH.size)
    if len(start) < _LENGTH.size:
        raise _broken(file, f"it has {size} bytes" if size else "it is empty")
    (length,) = _LENGTH.unpack(start)
    if length > _MAX_HEADER or _LENGTH.size + length > size:
        raise _broken(file, f"its header would be {length} bytes long and the file has {size}")
    tensors = _parse(file, stream.read(length))
    _check_layout(file, tensors, size - _LENGTH.size - length)
    return tensors


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
    return _Tensor(name, tuple(shape), begin, end, math.prod(shape) * _BITS[dtype])


def _check_layout(file: Path, tensors: list[_Tensor], size: int) -> None:
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


def _broken(file: Path, what: str) -> HubError:
    return HubError(f"{file} is not a whole safetensors file: {what}; download it again")
