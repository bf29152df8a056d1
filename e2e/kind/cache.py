"""Where everything that takes time is kept: `<cache>/kvasir/kind/<step>-<hash of what went in>/`.

Called by each step that makes something. A folder is there whole or not at all; another hash of the same step is
stale and removed as soon as the new one is made.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from e2e.kind.progress import KindError


def folder() -> Path:
    """The cache's folder; it can be deleted at any time no cluster is up."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvasir" / "kind"


def kubeconfig() -> Path:
    """Of the cluster that is up."""
    return folder() / "kubeconfig"


def logs() -> Path:
    return folder() / "log"


def digest(*inputs: str | Path) -> str:
    """Twelve hex digits over what goes into a step; a path stands for the content of the file or folder."""
    total = hashlib.sha256()
    for item in inputs:
        if isinstance(item, str):
            total.update(f"text {item}\n".encode())
            continue
        files = sorted(path for path in item.rglob("*") if path.is_file()) if item.is_dir() else [item]
        for path in files:
            if "__pycache__" not in path.parts:
                total.update(f"{path.relative_to(item)} {path.stat().st_mode & 0o111:o}\n".encode())
                total.update(path.read_bytes())
    return total.hexdigest()[:12]


def find(step: str, key: str) -> Path | None:
    path = folder() / f"{step}-{key}"
    return path if path.is_dir() else None


def make(step: str, key: str, build: Callable[[Path], None]) -> Path:
    """The folder of this step and hash; if it is not there, `build` fills it, and the step's others are removed."""
    with _locked(step):
        path = folder() / f"{step}-{key}"
        if path.is_dir():
            return path
        unfinished = path.with_name(f".{path.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        try:
            build(unfinished)
            unfinished.rename(path)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        _prune(step, path)
        return path


def require_space(gigabytes: int, purpose: str) -> None:
    """KindError if the disk of the cache has less room than `purpose` takes."""
    folder().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder()).free / 1e9
    if free < gigabytes:
        raise KindError(
            f"{free:.1f} GB are free on the disk of {folder()}, and {purpose} takes up to {gigabytes} GB. "
            "Free some, or let XDG_CACHE_HOME name a folder on a larger disk."
        )


@contextlib.contextmanager
def _locked(step: str) -> Iterator[None]:
    """Two runs that need the same step make it once."""
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / f".{step}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _prune(step: str, keep: Path) -> None:
    for path in folder().iterdir():
        if path != keep and re.fullmatch(rf"\.?{re.escape(step)}-[0-9a-f]{{12}}(\.unfinished)?", path.name):
            shutil.rmtree(path, ignore_errors=True)
