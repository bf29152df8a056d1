"""Counts sizes and names that should stay small: `python -m tools.code_figures [--ref COMMIT]`.

Prints the largest folder, names that several modules or public classes share, the longest function, files over 300
lines, and words of word_list.toml per 1,000 words of prose. With --ref it prints the figures of that commit too.
"""

import argparse
import ast
import io
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.check_words import ROOT, WordList
from tools.prose import passages, tracked_files

MAX_FILE_LINES = 300
PRODUCT = ("runtime/", "operator/")  # shared names and folder sizes count here only


@dataclass(frozen=True)
class Figure:
    """A number, and the places that it counts."""

    name: str
    value: float
    places: tuple[str, ...] = ()


class Tree:
    """The parsed sources below a root."""

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
            Figure("modules in the largest folder", size, (folder,)),
            Figure("module names used twice", len(modules), modules),
            Figure("public class names used twice", len(classes), classes),
            Figure("lines of the longest function", length, (function,)),
            Figure(f"files over {MAX_FILE_LINES} lines", len(big), long_files),
            *self._dialect(),
        ]

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
        yield Figure("words of prose", words)
        yield Figure("words to avoid", findings)
        yield Figure("words to avoid per 1,000 words of prose", round(1000 * findings / max(words, 1), 2))


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return None


def tree_of(root: Path) -> Tree:
    """Read the working tree at a root."""
    return Tree(root, tracked_files(root))


def tree_at(root: Path, commit: str) -> Tree:
    """Read the tree of a commit, unpacked into a temporary directory."""
    archive = subprocess.run(["git", "-C", str(root), "archive", commit], capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as directory, tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(directory, filter="data")
        unpacked = Path(directory)
        names = sorted(str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file())
        return Tree(unpacked, names)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.code_figures", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--ref", metavar="COMMIT", help="print the figures of this commit in a column before today's"
    )
    parser.add_argument("--places", action="store_true", help="name the files behind each figure")
    options = parser.parse_args(arguments)
    now = tree_of(ROOT).figures()
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
