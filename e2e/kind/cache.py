"""The cache of everything that takes time to build: `<cache>/kvasir/kind/<step>-<hash of the inputs>/`.

A folder is either complete or absent. Folders of the same step with other hashes are outdated, and are removed as
soon as the new folder is complete.
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
    """Return the cache's folder. It may be deleted while no cluster is running."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvasir" / "kind"


def kubeconfig() -> Path:
    """Return the kubeconfig of the running cluster."""
    return folder() / "kubeconfig"


def logs() -> Path:
    return folder() / "log"


def digest(*inputs: str | Path) -> str:
    """Return a hash of a step's inputs, as 12 hex digits. A path stands for the content of the file or folder."""
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
    """Return the folder of this step and hash. If it is absent, `build` fills it and older ones are removed."""
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
    """Raise KindError if the disk of the cache has less free space than `purpose` needs."""
    folder().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder()).free / 1e9
    if free < gigabytes:
        raise KindError(
            f"{free:.1f} GB are free on the disk of {folder()}, but {purpose} needs up to {gigabytes} GB. "
            "Free some space, or set XDG_CACHE_HOME to a folder on a larger disk."
        )


@contextlib.contextmanager
def _locked(step: str) -> Iterator[None]:
    """Ensure that two runs that need the same step build it only once."""
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / f".{step}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _prune(step: str, keep: Path) -> None:
    for path in folder().iterdir():
        if path != keep and re.fullmatch(rf"\.?{re.escape(step)}-[0-9a-f]{{12}}(\.unfinished)?", path.name):
            shutil.rmtree(path, ignore_errors=True)
