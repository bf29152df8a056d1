"""Programs of Debian for tests: packages are unpacked into the user's cache, and nothing is installed."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvasir"


class NoProgram(Exception):
    """A program could not be found or fetched. The message contains the cause and the next action."""


def unpacked(package: str, *, with_dependencies: bool = False) -> Path:
    """Return the folder with a package's files, and with those of its dependencies that this machine lacks.

    Raises NoProgram.
    """
    folder = CACHE / package
    if folder.exists():
        return folder
    if shutil.which("apt-get") is None:
        raise NoProgram(f"Debian's package {package} is needed, and apt-get is not here: install {package}")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        (Path(scratch) / "partial").mkdir()
        if with_dependencies:
            private = ("-o", f"Dir::Cache::archives={scratch}", "-o", "Debug::NoLocking=true")
            fetch = ["apt-get", "-qy", *private, "--no-install-recommends", "--download-only", "install", package]
        else:
            fetch = ["apt-get", "-q", "download", package]
        _run(fetch, package, scratch)
        for archive in Path(scratch).glob("*.deb"):
            _run(["dpkg-deb", "-x", str(archive), "unpacked"], package, scratch)
        (Path(scratch) / "unpacked").rename(folder)
    return folder


def _run(command: Sequence[str], package: str, folder: str) -> None:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise NoProgram(
            f"Debian's package {package} could not be fetched: {' '.join(command)}: {ended.stderr.strip()}; "
            f"install {package}, or run apt-get update"
        )
