import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest
from tools.prose import tracked_files

from kvasir.worker.step import StepInput, StepOutput

ROOT = Path(__file__).resolve().parents[2]
PAGES = [name for name in tracked_files(ROOT) if name.endswith(".md") and not name.startswith("demo/corpus/")]
BASES = (
    ROOT,
    ROOT / "runtime/kvasir",
    ROOT / "runtime/kvasir/models/architectures",
    ROOT / "operator/kvasir_operator",
)
"""A path on a page is relative to one of these, or to the folder of the page. Paths that begin with a dot are not
checked: they exist only after a command has run."""

FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
FOLDER = re.compile(r"[\w-][\w.-]*(/[\w.-]+)*/")
FILE = re.compile(r"[\w-][\w.-]*(/[\w.-]+)+\.(py|md|toml|yaml|yml|json|c|h|inc|sh)")
PLACE = re.compile(r"([\w./-]+\.py)::([\w.]+)")
MODULE = re.compile(r"\bpython3? -m ((?:tools|bench|e2e|demo)[\w.]*)")
SCRIPT = re.compile(r"\bpython3? ((?:tools|bench|e2e|demo|images)/[\w/.-]+\.py)")
EXAMPLE = re.compile(r"^```python\n# ([\w/]+\.py)\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
"""Code that a page takes from a file: its first line is the file's path."""
TARGET = re.compile(r"(?:^\s*|`)make ([a-z][a-z0-9-]*)", re.MULTILINE)


def read(page: str) -> str:
    return (ROOT / page).read_text()


def prose(page: str) -> str:
    """Return a page without its blocks of code."""
    return FENCED.sub("", read(page))


def found(page: str, path: str) -> Path | None:
    """Return the file or folder that a page means by a path; None if there is none."""
    return next((base / path for base in (*BASES, (ROOT / page).parent) if (base / path).exists()), None)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = HEADING.findall(FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: str) -> Iterator[str]:
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


def missing_paths(page: str) -> Iterator[str]:
    for code in CODE.findall(prose(page)):
        if (FOLDER.fullmatch(code) or FILE.fullmatch(code)) and "NAME" not in code and found(page, code) is None:
            yield code


@cache
def names_in(file: Path) -> frozenset[str]:
    """Return the functions, classes and methods of a module, as `Class.method`."""
    names: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    visit(node.body, f"{prefix}{node.name}.")

    visit(ast.parse(file.read_text()).body, "")
    return frozenset(names)


def missing_places(page: str) -> Iterator[str]:
    for path, name in PLACE.findall(prose(page)):
        file = found(page, path)
        if file is None or name not in names_in(file):
            yield f"{path}::{name}"


def missing_commands(page: str) -> Iterator[str]:
    text = read(page)
    targets = set(re.findall(r"^([a-z0-9-]+):", read("Makefile"), re.MULTILINE))
    yield from (f"make {name}" for name in TARGET.findall(text) if name not in targets)
    yield from (script for script in SCRIPT.findall(text) if not (ROOT / script).exists())
    for module in MODULE.findall(text):
        path = ROOT / module.rstrip(".").replace(".", "/")
        if not (path.with_suffix(".py").exists() or (path / "__main__.py").exists()):
            yield f"python -m {module}"


def wrong_examples(page: str) -> Iterator[str]:
    for path, code in EXAMPLE.findall(read(page)):
        if not (ROOT / path).exists() or f"\n{code}\n" not in (ROOT / path).read_text():
            yield path


def test_page_of_linear_methods_names_all_of_them() -> None:
    methods = {
        name for name in names_in(ROOT / "runtime/kvasir/layers/linear_method.py") if name.endswith("Method")
    }
    assert methods - {"LinearMethod"} <= set(CODE.findall(read("docs/design/adding-a-linear-method.md")))


def test_architecture_page_lists_each_package() -> None:
    packages = {path.parent.name for path in (ROOT / "runtime/kvasir").glob("*/__init__.py")}
    table = read("docs/design/architecture.md").partition("## Folders")[2]
    assert packages <= set(re.findall(r"`runtime/kvasir/(\w+)/", table))


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_resolve(page: str) -> None:
    assert list(broken_links(page)) == []


@pytest.mark.parametrize("page", PAGES)
def test_paths_on_a_page_exist(page: str) -> None:
    assert list(missing_paths(page)) == []


@pytest.mark.parametrize("page", PAGES)
def test_functions_on_a_page_exist(page: str) -> None:
    assert list(missing_places(page)) == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_on_a_page_exist(page: str) -> None:
    assert list(missing_commands(page)) == []


@pytest.mark.parametrize("page", PAGES)
def test_examples_on_a_page_are_those_of_their_files(page: str) -> None:
    assert list(wrong_examples(page)) == []


@pytest.mark.parametrize("message", [StepInput, StepOutput])
def test_the_page_of_the_step_has_every_field(message: type[msgspec.Struct]) -> None:
    rows = re.findall(r"^\| (`.*?`) \|", read("docs/design/step.md"), re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert set(message.__struct_fields__) <= named


def test_a_wrong_page_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Makefile").write_text("test:\n")
    (tmp_path / "module.py").write_text("class Thing:\n    def act(self) -> None: ...\n")
    (tmp_path / "page.md").write_text(
        "# One title\n[a](#one-title) [b](#two) [c](page.md#one-title) [d](none.md)\n"
        "`made/up.py` `made/` `.made/` `a / b`\n"
        "`module.py::Thing.act` `module.py::Thing.rest` `make test` `make tea` `python -m tools.none`\n"
        "```\n[e](none.md) `made/up.py`\n```\n"
        "```python\n# module.py\n    def act(self) -> None: ...\n```\n"
        "```python\n# module.py\n    def rest(self) -> None: ...\n```\n"
        "```python\n# none.py\n```\n```python\n# none.py\n1\n```\n"
    )
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert list(broken_links("page.md")) == ["#two", "none.md"]
    assert list(missing_paths("page.md")) == ["made/up.py", "made/"]
    assert list(missing_places("page.md")) == ["module.py::Thing.rest"]
    assert list(missing_commands("page.md")) == ["make tea", "python -m tools.none"]
    assert list(wrong_examples("page.md")) == ["module.py", "none.py"]
