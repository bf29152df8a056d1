"""Write images/locks/IMAGE.txt: the exact versions and hashes of the packages in each image, for `make locks`.

An engine next to another build of torch, for CPUs or another CUDA version, gets the lock of `engine-cpu`: the
engine's without torch and CUDA's libraries, whose names differ between builds.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from images.build_steps import ROOT, pip_settings, scratch

LOCKS: Final = ROOT / "images/locks"
EXTRAS: Final = {"operator": ("operator",), "frontend": ("frontend", "otel", "s3"), "engine": ("engine",)}
PINNED: Final = {"torch": "2.11.0"}  # measured on a GPU; later ones need a newer driver
PYTHON: Final = "3.11"  # the oldest of the base images, and of pyproject.toml
WHEELS: Final = ("x86_64-manylinux_2_36", "aarch64-manylinux_2_36")  # glibc of Debian bookworm
_WITH_TORCH: Final = re.compile(r"torch|triton|(nvidia|cuda)-.*")


def main() -> int:
    LOCKS.mkdir(exist_ok=True)
    try:
        for image, extras in EXTRAS.items():
            (LOCKS / f"{image}.txt").write_text(locked(requirements(ROOT / "pyproject.toml", extras)))
            print(LOCKS / f"{image}.txt", flush=True)
        (LOCKS / "engine-cpu.txt").write_text(without_torch((LOCKS / "engine.txt").read_text()))
    except subprocess.CalledProcessError as error:
        print(
            f"images.lock_files: uv failed with exit code {error.returncode}: {error.stderr.strip()}",
            file=sys.stderr,
        )
        return 1
    return 0


def requirements(pyproject: Path, extras: Sequence[str]) -> list[str]:
    project = tomllib.loads(pyproject.read_text())["project"]
    lines = project["dependencies"] + [line for name in extras for line in project["optional-dependencies"][name]]
    return sorted(_pinned(line) for line in lines)


def locked(wanted: Sequence[str]) -> str:
    """Resolve requirements. Raises CalledProcessError if a package has no wheel for an architecture of WHEELS."""
    with scratch() as directory:
        (directory / "in.txt").write_text("\n".join(wanted))
        out = directory / "out.txt"
        options = ("--universal", "--python-version", PYTHON, "--generate-hashes", "--no-annotate", "--no-header")
        _uv("compile", *options, "--output-file", str(out), str(directory / "in.txt"))
        for platform in WHEELS:
            exact = ("--dry-run", "--no-deps", "--require-hashes", "--only-binary", ":all:")
            target = (
                "--python-platform",
                platform,
                "--python-version",
                PYTHON,
                "--target",
                str(directory / "none"),
            )
            _uv("install", *exact, *target, "--requirements", str(out))
        return out.read_text()


def packages(lock: str) -> dict[str, str]:
    """Return the lines of a lock by package."""
    found: dict[str, str] = {}
    for block in re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE):
        if block.strip():
            name = re.split(r"[=\[ ]", block, maxsplit=1)[0]
            found[name] = found.get(name, "") + block
    return found


def without_torch(lock: str) -> str:
    return "".join(block for name, block in packages(lock).items() if not _WITH_TORCH.fullmatch(name))


def _pinned(line: str) -> str:
    name = re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0]
    return f"{name}=={PINNED[name]}" if name in PINNED else line


def _uv(*arguments: str) -> None:
    command = [sys.executable, "-m", "uv", "pip", *arguments, "--quiet"]
    environment = {**os.environ, **uv_settings(pip_settings())}
    subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


def uv_settings(settings: Mapping[str, str]) -> dict[str, str]:
    # uv does not read pip's configuration
    names = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "cert": "SSL_CERT_FILE"}
    return {names[name]: value for name, value in settings.items() if name in names}


if __name__ == "__main__":
    sys.exit(main())
