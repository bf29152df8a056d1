import os
import platform
import re
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

from wheel_tree import COMPILES, FOLDER, HOOK, LIBRARIES, ROOT, SOURCES, Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_wheel_has_the_libraries_and_the_tag_of_its_machine(tree: Tree) -> None:
    wheel = tree.wheel()
    assert wheel.name.startswith("kvasir_serve-")
    # The index accepts manylinux tags only, and pip takes one of this machine's.
    assert wheel.name.endswith(f"-py3-none-manylinux_2_28_{platform.machine()}.whl")
    assert not parse_wheel_filename(wheel.name)[3].isdisjoint(sys_tags())
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(name).name for name in archive.namelist() if name.startswith("kvasir/kernels/cpu/")]
        data = {"kvasir/py.typed", "kvasir/hub/demo/model.safetensors", "kvasir_operator/crds/Kustomization"}
        data.add("kvasir/kernels/triton/device_tiles.json")
        assert data <= set(archive.namelist())
    assert sorted(names) == ["__init__.py", *LIBRARIES, "packed_product.py"]


def test_libraries_need_no_newer_c_library_than_the_tag_says() -> None:
    libraries = list((ROOT / FOLDER).glob("kernels-*.so"))
    needed = {found for path in libraries for found in re.findall(rb"\bGLIBC_2\.(\d+)", path.read_bytes())}
    assert max(map(int, needed), default=0) <= int(HOOK.GLIBC.partition(".")[2])


def test_a_wheel_has_the_files_of_the_page(tree: Tree) -> None:
    folder = Path("kvasir/frontend/page/assets")
    with zipfile.ZipFile(tree.wheel()) as archive:
        names = {Path(name).name for name in archive.namelist() if Path(name).parent == folder}
    assert names == {path.name for path in (ROOT / "runtime" / folder).iterdir()}


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


def test_a_change_of_any_source_is_a_reason_to_build(tree: Tree) -> None:
    tree.wheel()
    for source in (*(f"{FOLDER}/{name}" for name in SOURCES), "hatch_build.py"):
        assert not HOOK.outdated(tree.top)
        before = (tree.top / source).stat().st_mtime_ns
        os.utime(tree.top / source)
        assert sorted(HOOK.outdated(tree.top)) == LIBRARIES, source
        os.utime(tree.top / source, ns=(before, before))


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
        (
            "linux",
            "glibc",
            "x86_64",
            {
                "kernels-x86-64-v4-bf16.so": "x86_64_v4+avx512bf16+avx512vnni",
                "kernels-x86-64-v4.so": "x86_64_v4",
                "kernels-x86-64-v3.so": "x86_64_v3",
            },
        ),
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
