"""Installs Kvasir into the environment of this interpreter, with one line of progress: the Makefile's pip.

    python tools/install_packages.py REQUIREMENT

With TORCH_INDEX_URL, torch comes from that package index first. Standard library only, and pip.
"""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

GIGABYTES: Final = "about 3.1 GB to download and 5.7 GB on disk, most of it CUDA's libraries for torch"
# CUDA's libraries and Triton, without which PyPI's torch does not start, not even on a CPU.
SAVED: Final = "more than 2 GB of it and 4 GB on disk"
# Megabytes. Without a terminal, only such packages are named.
LARGE: Final = 100
_DOWNLOAD = re.compile(r"\s*(?:Downloading|Using cached) (\S+?)-\d\S* \((\d[\d.]*) (kB|MB|GB)")
_MEGABYTES: Final = {"kB": 0.001, "MB": 1.0, "GB": 1000.0}


def announcement(environ: Mapping[str, str], has_gpu: bool, has_torch: bool) -> list[str]:
    if has_torch:
        return ["Installing Kvasir; torch is here already"]
    if url := environ.get("TORCH_INDEX_URL"):
        return [f"Installing Kvasir, with torch from {url}"]
    lines = [f"Installing Kvasir: {GIGABYTES}"]
    if not has_gpu and platform.machine() == "x86_64":
        lines.append(f"There is no GPU here: TORCH_INDEX_URL=URL, an index of torch for CPUs, saves {SAVED}")
    return lines


def downloads(lines: Iterator[str], log: list[str]) -> Iterator[tuple[str, float]]:
    """Yield (package, megabytes) for each file in pip's output, whose lines are added to the log."""
    for line in lines:
        log.append(line)
        if found := _DOWNLOAD.match(line):
            yield found[1], float(found[2]) * _MEGABYTES[found[3]]


def show(found: Iterator[tuple[str, float]], is_terminal: bool) -> None:
    count, total = 0, 0.0
    for name, size in found:
        count, total = count + 1, total + size
        text = f"  {count} {'file' if count == 1 else 'files'}, {total / 1000:.2f} GB: {name}"
        if is_terminal:
            print(f"\r\x1b[K{text}", end="", flush=True)
        elif size >= LARGE:
            print(text, flush=True)
    if is_terminal:
        print("\r\x1b[K", end="", flush=True)


def pip(*arguments: str) -> int:
    """Run pip quietly; its whole output follows if it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off"]
    log: list[str] = []
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        show(downloads(process.stdout, log), sys.stdout.isatty())
    if process.returncode:
        print("".join(log), file=sys.stderr)
    return process.returncode


def main(requirement: str) -> int:
    has_torch = any(Path(path, "torch").is_dir() for path in sys.path)
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*"))
    print("\n".join(announcement(os.environ, has_gpu, has_torch)), flush=True)
    url = os.environ.get("TORCH_INDEX_URL")
    if url and not has_torch and (code := pip("--index-url", url, "torch>=2.11,<3")):
        return code
    return pip("-e", requirement)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
