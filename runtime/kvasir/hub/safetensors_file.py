"""Check that a safetensors file is whole, without torch: the library compares its header with its size."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from kvasir.hub.hub_errors import HubError
from kvasir.hub.reading import LFS_POINTER, refuse_pointer

MAX_HEADER_BYTES: Final = 100_000_000  # the library's own limit


def check_safetensors(file: Path) -> int:
    """Return the bytes of a file's tensors. Raises HubError for a file that is not whole."""
    with _opened(file), file.open("rb") as stream:
        return file.stat().st_size - 8 - int.from_bytes(stream.read(8), "little")


def tensor_shapes(file: Path) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes by name. Raises HubError for a file that is not whole."""
    with _opened(file) as tensors:
        return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118


def tensor_shapes_in(stream: BinaryIO, size: int, file: Path) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes by name from a file of `size` bytes, of which only the header is read. `file`: its name."""
    refuse_pointer(file, stream.read(len(LFS_POINTER)))
    stream.seek(0)
    length = int.from_bytes(stream.read(8), "little")
    if length > MAX_HEADER_BYTES or 8 + length > size:
        raise _broken(file, f"its header would be {length} bytes long and the file has {size}")
    try:
        header = json.loads(stream.read(length))
        return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _broken(file, "its header does not describe tensors") from None


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with file.open("rb") as stream:
            refuse_pointer(file, stream.read(len(LFS_POINTER)))
        with safe_open(file, framework="np") as tensors:
            yield tensors
    except OSError as error:
        raise HubError(f"{file} cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        cause = str(error).removeprefix("Error while deserializing header: ")
        raise _broken(file, cause) from None


def _broken(file: Path, what: str) -> HubError:
    return HubError(f"{file} is not a whole safetensors file: {what}; download it again")
