"""Read files of a model. HubError names a file that is unreadable or broken."""

import json
from pathlib import Path
from typing import Any, Final

from kvasir.hub.hub_errors import HubError

LFS_POINTER: Final = b"version https://git-lfs"


def read_bytes(file: Path) -> bytes:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise HubError(f"{file} cannot be read: {error.strerror or error}") from None
    refuse_pointer(file, content)
    return content


def refuse_pointer(file: Path, content: bytes) -> None:
    # left by a clone without Git LFS
    if content.startswith(LFS_POINTER):
        raise HubError(
            f"{file} is a Git LFS pointer, not the file itself: run `git lfs pull` in the model's directory"
        )


def read_json(file: Path) -> dict[str, Any]:
    content = read_bytes(file)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise HubError(f"{file} is not JSON ({error}): download it again") from None
    if not isinstance(value, dict):
        raise HubError(f"{file} holds a JSON {type(value).__name__}, not an object: download it again")
    return value


def read_json_if_any(file: Path) -> dict[str, Any]:
    return read_json(file) if file.exists() else {}


def write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
