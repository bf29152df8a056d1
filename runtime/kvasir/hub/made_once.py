"""Files that are made of a model's own, once, and kept in the user's cache for all processes."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from kvasir.hub.hub_errors import HubError


def made_once(kind: str, key: str, what: str, make: Callable[[Path], None]) -> Path:
    """Return the directory of a key; `make` fills a new one. Raises HubError.

    `what`: the subject of an error, such as "the tokenizer of /models/x".
    """
    target = cache_of(what) / kind / key
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".made-") as folder:
            made = Path(folder) / "made"
            made.mkdir()
            make(made)
            _publish(made, target)
    except OSError as error:
        if error.errno is None:  # of the network
            raise
        raise HubError(
            f"{what} has to be converted and kept in {target.parent}, which cannot be written "
            f"({error.strerror or error}): set XDG_CACHE_HOME to a writable directory"
        ) from None
    return target


def cache_of(what: str) -> Path:
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise HubError(
            f"{what} has to be converted and kept, and this user has no home: set XDG_CACHE_HOME"
        ) from None
    return base / "kvasir"


def _publish(made: Path, target: Path) -> None:
    # another process may have been faster: its result is the same
    try:
        made.rename(target)
    except OSError:
        if not target.exists():
            raise
