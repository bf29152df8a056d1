"""Counts what should stay small in the sources: `python -m tools.code_figures [--ref COMMIT]`.

`--check` fails if a figure is worse than in code_figures.toml, and `--record` writes the present figures into it.
"""

import argparse
import ast
import io
import math
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.check_words import ROOT, WordList
from tools.docstrings import ProseOfCode, fragments, prose_of_code
from tools.import_cycles import modules_in_cycles
from tools.prose import passages, tracked_files

MAX_FILE_LINES = 300
MAX_TEST_NAME = 60
MAX_WORDS_PER_100_LINES = 120
MIN_COMMENT_PERCENT = 25
PRODUCT = ("runtime/", "operator/")  # shared names and folder sizes count here only
RECORDED = ROOT / "tools" / "code_figures.toml"


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    places: tuple[str, ...] = ()
    # On the good side of the goal the figure may change freely. None: it may grow.
    goal: float | None = 0
    # A larger value is better.
    rises: bool = False

    def record(self) -> float:
        """Return the worst value that the next change may have: this one, or the goal if it is reached."""
        assert self.goal is not None
        return min(math.floor(self.value), self.goal) if self.rises else max(math.ceil(self.value), self.goal)

    def is_worse_than(self, recorded: float) -> bool:
        return math.floor(self.value) < recorded if self.rises else math.ceil(self.value) > recorded


class Tree:
    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.texts = {name: text for name in names if (text := _read(root / name)) is not None}
        self.python = [name for name in self.texts if name.endswith(".py")]
        self.product = [name for name in self.python if name.startswith(PRODUCT)]
        self._parsed = {name: ast.parse(self.texts[name]) for name in self.python}

    def figures(self) -> list[Figure]:
        length, function = max(self._functions(), default=(0, ""))
        size, folder = max(((n, f) for f, n in self._folders().items()), default=(0, ""))
        big = sorted((-lines, name) for name, lines in self._lengths().items() if lines > MAX_FILE_LINES)
        long_files = tuple(f"{name} ({-lines})" for lines, name in big)
        classes, modules = self._shared(self._class_places()), self._shared(self._module_places())
        return [
            Figure("modules in the largest folder", size, (folder,), goal=12),
            Figure("module names used twice", len(modules), modules),
            Figure("public class names used twice", len(classes), classes),
            Figure("lines of the longest function", length, (function,), goal=40),
            Figure(f"files over {MAX_FILE_LINES} lines", len(big), long_files),
            *self._names(),
            *self._prose_of_code(),
            *self._dialect(),
            Figure("lines of the product", sum(self.texts[name].count("\n") for name in self.product), goal=None),
        ]

    def _names(self) -> Iterator[Figure]:
        limits = [f"{name}: {found}" for name in self.python for found in _OLD_LIMIT.findall(self.texts[name])]
        tests = [place for length, place in self._test_names() if length > MAX_TEST_NAME]
        cycles = modules_in_cycles({name: self._parsed[name] for name in self.product})
        yield Figure("limits named MOST_ or LEAST_", len(limits), tuple(limits))
        yield Figure(f"test names over {MAX_TEST_NAME} characters", len(tests), tuple(tests))
        yield Figure("modules in import cycles", len(cycles), tuple(cycles))

    def _test_names(self) -> Iterator[tuple[int, str]]:
        for name, module in self._parsed.items():
            for node in ast.walk(module):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                    yield len(node.name), f"{name}: {node.name}"

    def _prose_of_code(self) -> Iterator[Figure]:
        found = [f"{name}:{line}" for name in self.python for line in fragments(self._parsed[name])]
        yield Figure("docstrings that begin with a fragment", len(found), tuple(found))
        silent = [
            name for name in self.product if self._parsed[name].body and not ast.get_docstring(self._parsed[name])
        ]
        yield Figure("product modules without a docstring", len(silent), tuple(silent))
        folders: defaultdict[str, ProseOfCode] = defaultdict(ProseOfCode)
        for name in self.python:
            if "/" in name:
                folders[name.split("/")[0]] += prose_of_code(self.texts[name], self._parsed[name])
        for folder, prose in sorted(folders.items()):
            words = round(prose.words_per_100_lines, 1)
            yield Figure(f"words per 100 lines in {folder}", words, goal=MAX_WORDS_PER_100_LINES)
        for folder in (name.rstrip("/") for name in PRODUCT):
            share = round(folders[folder].comment_share, 1)
            yield Figure(f"percent in comments in {folder}", share, goal=MIN_COMMENT_PERCENT, rises=True)

    def _functions(self) -> Iterator[tuple[int, str]]:
        for name, module in self._parsed.items():
            for node in ast.walk(module):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                    yield node.end_lineno - node.lineno + 1, f"{name}: {node.name}"

    def _folders(self) -> Counter[str]:
        return Counter(str(Path(name).parent) for name in self.product if not Path(name).name.startswith("__"))

    def _lengths(self) -> dict[str, int]:
        return {name: self.texts[name].count("\n") for name in self.python}

    def _class_places(self) -> Iterator[tuple[str, str]]:
        for name in self.product:
            for node in self._parsed[name].body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    yield node.name, name

    def _module_places(self) -> Iterator[tuple[str, str]]:
        for name in self.product:
            if not Path(name).name.startswith("__"):
                yield Path(name).stem, name

    @staticmethod
    def _shared(places: Iterator[tuple[str, str]]) -> tuple[str, ...]:
        found: defaultdict[str, list[str]] = defaultdict(list)
        for name, path in places:
            found[name].append(path)
        return tuple(f"{name}: {', '.join(paths)}" for name, paths in sorted(found.items()) if len(paths) > 1)

    def _dialect(self) -> Iterator[Figure]:
        word_list, words, findings = WordList(), 0, 0
        for name, text in self.texts.items():
            for passage in passages(name, text):
                words += len(passage.text.split())
                findings += sum(1 for _ in word_list.find(name, passage))
        yield Figure("words of prose", words, goal=None)
        yield Figure("words to avoid", findings)


_OLD_LIMIT = re.compile(r"^_?(?:MOST|LEAST)_\w+", re.M)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return None


def tree_of(root: Path) -> Tree:
    return Tree(root, tracked_files(root))


def tree_at(root: Path, commit: str) -> Tree:
    # Unpacked into a temporary directory.
    archive = subprocess.run(["git", "-C", str(root), "archive", commit], capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as directory, tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(directory, filter="data")
        unpacked = Path(directory)
        names = sorted(str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file())
        return Tree(unpacked, names)


def worse(figures: Sequence[Figure]) -> Iterator[str]:
    recorded = tomllib.loads(RECORDED.read_text())
    for figure in figures:
        if figure.name in recorded and figure.is_worse_than(recorded[figure.name]):
            bound = "at least" if figure.rises else "at most"
            yield f"{figure.name}: {figure.value:,}, but {bound} {recorded[figure.name]:,} was reached before"


def record(figures: Sequence[Figure]) -> None:
    lines = [f'"{figure.name}" = {figure.record()}' for figure in figures if figure.goal is not None]
    head = "# Figures that may not get worse; written by `python -m tools.code_figures --record`."
    RECORDED.write_text("\n".join([head, *lines, ""]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.code_figures", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--ref", metavar="COMMIT", help="print the figures of this commit in a column before today's"
    )
    parser.add_argument("--places", action="store_true", help="name the files behind each figure")
    parser.add_argument("--check", action="store_true", help="fail if a figure is worse than the recorded one")
    parser.add_argument("--record", action="store_true", help="record the present figures")
    options = parser.parse_args(arguments)
    now = tree_of(ROOT).figures()
    if options.record:
        record(now)
    if options.check:
        print(*(problems := list(worse(now))), sep="\n", end="\n" if problems else "")
        if problems:
            print("`python -m tools.code_figures --places` names the files behind each figure.")
        return 1 if problems else 0
    before = tree_at(ROOT, options.ref).figures() if options.ref else []
    if before:
        print(f"{'':42}{options.ref[:12]:>12}{'now':>12}")
    for index, figure in enumerate(now):
        older = f"{before[index].value:>12,}" if before else ""
        print(f"{figure.name:42}{older}{figure.value:>12,}")
        if options.places:
            print(*(f"    {place}" for place in figure.places), sep="\n", end="\n" if figure.places else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
