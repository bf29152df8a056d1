"""A copy of the files from which a wheel is built, and hatch_build.py. A stand-in replaces the compiler."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("pyproject.toml", "hatch_build.py", ".gitignore", "README.md", "LICENSE", "crds", "operator", "runtime")
FOLDER = "runtime/kvasir/kernels/cpu"
SOURCES = sorted(path.name for path in (ROOT / FOLDER).iterdir() if path.suffix in (".c", ".h", ".inc"))
COMPILES = "Path(out).write_text(' '.join(sys.argv))"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOK = load()
LIBRARIES = sorted(HOOK.libraries_for(platform.machine()))


class Tree:
    def __init__(self, directory: Path, *, libraries: bool = False) -> None:
        """`libraries`: with those that are built here."""
        self.top, self.folder, self.out = directory / "tree", directory / "tree" / FOLDER, directory / "out"
        self._tools = directory / "tools"
        self.top.mkdir()
        without = ("__pycache__",) if libraries else ("__pycache__", "*.so")
        for name in PARTS:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.top / name, ignore=shutil.ignore_patterns(*without))
            else:
                shutil.copy2(ROOT / name, self.top / name)
        self.let_compiler(COMPILES)

    def let_compiler(self, statement: str) -> None:
        package = self._tools / "ziglang"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
        beginning = "import sys\nfrom pathlib import Path\nout = sys.argv[sys.argv.index('-o') + 1]\n"
        (package / "__main__.py").write_text(f"{beginning}{statement}\n")

    def run(self, statement: str, compiler: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a build as pip does. Without `compiler`, ziglang cannot be imported."""
        hidden = "" if compiler else "import sys; sys.modules['ziglang'] = None; "
        command = [sys.executable, "-c", f"{hidden}from hatchling.build import *; {statement}"]
        environment = {**os.environ, "PYTHONPATH": str(self._tools)}
        return subprocess.run(command, cwd=self.top, env=environment, capture_output=True, text=True, check=False)

    def wheel(self, compiler: bool = True) -> Path:
        ended = self.run(f"build_wheel({str(self.out)!r})", compiler)
        assert ended.returncode == 0, ended.stderr
        (found,) = self.out.glob("*.whl")
        return found

    def asks_for(self, kind: str = "wheel") -> str:
        return self.run(f"print(*get_requires_for_build_{kind}())").stdout.strip()
