"""Compiles the kernels for CPUs when the package is built: a library per instruction set, next to the sources."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# A package, so that no compiler need be installed. 440 MB, so only if a library is missing or older than a source.
COMPILER: Final = "ziglang>=0.17.1,<0.18"
FOLDER: Final = Path("runtime/kvasir/kernels/cpu")
MODELS: Final = MappingProxyType(  # machine → level in kvasir.kernels.cpu → processor in the compiler's words
    {
        "x86_64": MappingProxyType(
            {
                "x86-64-v4-bf16": "x86_64_v4+avx512bf16+avx512vnni",
                "x86-64-v4": "x86_64_v4",
                "x86-64-v3": "x86_64_v3",
            }
        ),
        "aarch64": MappingProxyType({"aarch64": "baseline"}),
    }
)
GLIBC: Final = "2.28"  # as torch's wheels
FLAGS: Final = (
    *("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-s"),
    *("-O3", "-ffp-contract=on", "-fno-math-errno", "-fno-trapping-math"),
)
# -ffp-contract=on fuses by the expression alone, so each copy of an inlined function rounds the same.


class KernelsHook(BuildHookInterface[BuilderConfig]):
    def dependencies(self) -> list[str]:
        return [COMPILER] if outdated(Path(self.root)) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        machine = platform.machine()
        libraries = libraries_for(machine)
        if not libraries:
            self.app.display_info(f"no CPU kernels for {sys.platform} on {machine}: plain torch will compute")
            return
        todo = outdated(Path(self.root))
        if todo and find_spec("ziglang") is None:
            self.app.abort(f"the CPU kernels need a compiler: pip install '{COMPILER}'")
        for name, model in todo.items():
            self.app.display_info(f"compiling {name}")
            try:
                build(Path(self.root) / FOLDER, name, machine, model)
            except subprocess.CalledProcessError as error:
                self.app.abort(f"{FOLDER}/kernels.c does not compile to {name}:\n{error.stderr}")
        build_data["artifacts"] += [f"/{FOLDER}/{name}" for name in libraries]
        if version == "standard":
            build_data["tag"] = f"py3-none-manylinux_{GLIBC.replace('.', '_')}_{machine}"
            build_data["pure_python"] = False


def libraries_for(machine: str) -> Mapping[str, str]:
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return {}
    return {f"kernels-{level}.so": model for level, model in MODELS.get(machine, {}).items()}


def outdated(root: Path) -> Mapping[str, str]:
    """Return the libraries that are missing or older than a source or than this file."""
    folder = root / FOLDER
    sources = [path for path in folder.iterdir() if path.suffix in (".c", ".h", ".inc")]
    newest = max(path.stat().st_mtime_ns for path in (*sources, root / "hatch_build.py"))
    libraries = libraries_for(platform.machine())
    return {name: model for name, model in libraries.items() if _time(folder / name) < newest}


def _time(library: Path) -> int:
    return library.stat().st_mtime_ns if library.exists() else -1


def build(folder: Path, name: str, machine: str, model: str) -> None:
    started = time.time_ns()  # becomes the library's time: a source that is edited meanwhile is newer
    with tempfile.TemporaryDirectory(prefix="kvasir-kernels-") as scratch:
        built = Path(scratch) / name
        target = ("-target", f"{machine}-linux-gnu.{GLIBC}", f"-mcpu={model}")
        command = [sys.executable, "-m", "ziglang", "cc", *target, *FLAGS, "-o", str(built), "kernels.c"]
        caches = {f"ZIG_{kind}_CACHE_DIR": f"{scratch}/{kind.lower()}" for kind in ("GLOBAL", "LOCAL")}
        subprocess.run(
            command, cwd=folder, env={**os.environ, **caches}, capture_output=True, text=True, check=True
        )
        whole = shutil.copyfile(built, folder / f"{os.getpid()}-{name}")
    os.utime(whole, ns=(started, started))
    whole.replace(folder / name)  # a process that uses an older library keeps it
