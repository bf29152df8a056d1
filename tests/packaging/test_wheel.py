"""The wheel, and hatch_build.py, which compiles the kernels into it. A stand-in replaces the compiler."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
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
    """A copy of the files from which a wheel is built."""

    def __init__(self, directory: Path) -> None:
        self.top, self.folder, self.out = directory / "tree", directory / "tree" / FOLDER, directory / "out"
        self._tools = directory / "tools"
        self.top.mkdir()
        for name in PARTS:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.top / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
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


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_wheel_has_the_libraries_and_the_tag_of_its_machine(tree: Tree) -> None:
    wheel = tree.wheel()
    assert wheel.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(name).name for name in archive.namelist() if name.startswith("kvasir/kernels/cpu/")]
        data = {"kvasir/py.typed", "kvasir/hub/demo/model.safetensors", "kvasir_operator/crds/Kustomization"}
        data.add("kvasir/kernels/triton/device_tiles.json")
        assert data <= set(archive.namelist())
    assert sorted(names) == ["__init__.py", *LIBRARIES]


def test_an_editable_install_puts_libraries_next_to_the_sources(tree: Tree) -> None:
    assert tree.run(f"build_editable({str(tree.out)!r})").returncode == 0
    assert sorted(path.name for path in tree.folder.glob("*.so")) == LIBRARIES


def test_the_compilers_arguments_do_not_contain_the_folder(tree: Tree) -> None:
    tree.wheel()
    for library in LIBRARIES:
        asked = (tree.folder / library).read_text().split()
        out = asked.index("-o")
        assert asked[out + 2] == "kernels.c"
        assert str(tree.top) not in " ".join(asked[1:out])


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_the_compiler_is_required_only_if_something_is_built(tree: Tree, kind: str) -> None:
    assert HOOK.COMPILER in tree.asks_for(kind)
    tree.wheel()
    assert HOOK.COMPILER not in tree.asks_for(kind)


def test_an_up_to_date_tree_is_built_without_a_compiler(tree: Tree) -> None:
    first = tree.wheel().read_bytes()
    assert tree.wheel(compiler=False).read_bytes() == first


@pytest.mark.parametrize("source", [*(f"{FOLDER}/{name}" for name in SOURCES), "hatch_build.py"])
def test_a_change_of_any_source_is_a_reason_to_build(tree: Tree, source: str) -> None:
    tree.wheel()
    os.utime(tree.top / source)
    assert tree.asks_for() == HOOK.COMPILER


def test_a_source_edited_while_it_is_compiled_is_compiled_again(tree: Tree) -> None:
    tree.let_compiler(f"{COMPILES}; Path('kernels.c').touch()")
    tree.wheel()
    assert tree.asks_for() == HOOK.COMPILER


def test_only_a_missing_library_is_built_again(tree: Tree) -> None:
    tree.wheel()
    os.utime(tree.folder / LIBRARIES[-1], (time.time() + 60, time.time() + 60))
    (tree.folder / LIBRARIES[0]).unlink()
    left = {name: (tree.folder / name).stat().st_mtime_ns for name in LIBRARIES[1:]}
    tree.wheel()
    assert sorted(path.name for path in tree.folder.glob("*.so")) == LIBRARIES
    assert left == {name: (tree.folder / name).stat().st_mtime_ns for name in LIBRARIES[1:]}


def test_without_a_compiler_the_error_names_the_package(tree: Tree) -> None:
    ended = tree.run(f"build_wheel({str(tree.out)!r})", compiler=False)
    assert ended.returncode != 0
    assert ended.stderr == f"the CPU kernels need a compiler: pip install '{HOOK.COMPILER}'\n"


def test_a_compilers_error_is_shown_and_leaves_no_library(tree: Tree) -> None:
    tree.let_compiler("sys.exit('kernels.c:7: no such thing')")
    ended = tree.run(f"build_wheel({str(tree.out)!r})")
    assert ended.returncode != 0
    assert "kernels.c:7: no such thing" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(tree.folder.glob("*.so"))


def test_the_source_distribution_has_all_inputs_of_a_wheel(tree: Tree) -> None:
    tree.wheel()
    assert tree.run(f"build_sdist({str(tree.out)!r})").returncode == 0
    (archive,) = tree.out.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.split("/", 1)[1] for name in opened.getnames()}
    assert {"hatch_build.py", *(f"{FOLDER}/{name}" for name in SOURCES)} <= names
    assert not [name for name in names if name.endswith(".so")]


@pytest.mark.parametrize(
    ("system", "libc", "machine", "libraries"),
    [
        ("linux", "glibc", "x86_64", {"kernels-x86-64-v4.so": "x86_64_v4", "kernels-x86-64-v3.so": "x86_64_v3"}),
        ("linux", "glibc", "aarch64", {"kernels-aarch64.so": "baseline"}),
        ("linux", "glibc", "riscv64", {}),
        ("linux", "", "x86_64", {}),
        ("darwin", "", "aarch64", {}),
    ],
)
def test_machines_that_have_no_kernels_ask_for_none(
    monkeypatch: pytest.MonkeyPatch, system: str, libc: str, machine: str, libraries: dict[str, str]
) -> None:
    monkeypatch.setattr(HOOK.sys, "platform", system)
    monkeypatch.setattr(HOOK.platform, "libc_ver", lambda: (libc, ""))
    assert HOOK.libraries_for(machine) == libraries


def test_a_platform_without_kernels_gets_the_wheel_for_any(tree: Tree) -> None:
    elsewhere = "import platform; platform.machine = lambda: 'riscv64'; "
    ended = tree.run(f"{elsewhere}print(*get_requires_for_build_wheel()); build_wheel({str(tree.out)!r})", False)
    assert ended.returncode == 0
    assert HOOK.COMPILER not in ended.stdout
    (wheel,) = tree.out.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
