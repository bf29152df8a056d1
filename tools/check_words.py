"""Reports words of our prose that word_list.toml does not allow: `python -m tools.check_words [PATH...]`.

Prints one line per word, `path:line: word → suggestion`, and exits with 1 if there is any. With --count it prints
the number per folder instead.
"""

import argparse
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from tools.prose import Passage, passages, tracked_files

ROOT = Path(__file__).parent.parent
WORD_LIST = Path(__file__).with_name("word_list.toml")
COUNTED_FOLDERS = 2  # parts of a path that --count adds up by


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    word: str
    suggestion: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word} → {self.suggestion}"


@dataclass
class _Exception:
    reason: str
    path: str = "*"
    phrase: str = ""
    used: bool = field(default=False, init=False)

    def __str__(self) -> str:
        return f"path = {self.path!r}, phrase = {self.phrase!r}"

    def accepts(self, path: str, passage: Passage, start: int, end: int) -> bool:
        accepted = fnmatch(path, self.path) and (not self.phrase or self._quotes(passage.text, start, end))
        self.used = self.used or accepted
        return accepted

    def _quotes(self, text: str, start: int, end: int) -> bool:
        words = re.escape(self.phrase).replace("\\ ", r"\s")
        return any(m.start() <= start and end <= m.end() for m in re.finditer(words, text, re.I))


class WordList:
    def __init__(self, path: Path = WORD_LIST) -> None:
        data = tomllib.loads(path.read_text())
        self._suggestions = list(data["words"].values())
        alternatives = ("(" + word.replace(" ", r"\s") + ")" for word in data["words"])
        self._pattern = re.compile(rf"\b(?:{'|'.join(alternatives)})\b", re.I)
        self._exceptions = [_Exception(**exception) for exception in data.get("exceptions", [])]

    def find(self, path: str, passage: Passage) -> Iterator[Finding]:
        for match in self._pattern.finditer(passage.text):
            if not any(exception.accepts(path, passage, *match.span()) for exception in self._exceptions):
                line = passage.line + passage.text.count("\n", 0, match.start())
                suggestion = self._suggestions[(match.lastindex or 1) - 1]
                yield Finding(path, line, " ".join(match[0].split()), suggestion)

    def unused(self) -> list[str]:
        """Return the exceptions that have accepted nothing so far."""
        return [str(exception) for exception in self._exceptions if not exception.used]


def check(root: Path, names: Iterable[str], words: WordList) -> Iterator[Finding]:
    # `names`: files, relative to the root.
    for name in names:
        try:
            text = (root / name).read_text()
        except UnicodeDecodeError:
            continue
        for passage in passages(name, text):
            yield from words.find(name, passage)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.check_words", description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="*", metavar="PATH", help="file or folder to check (default: all)")
    parser.add_argument("--count", action="store_true", help="print only the number of words per folder")
    options = parser.parse_args(arguments)
    words = WordList()
    names = list(_selected(tracked_files(ROOT), options.paths))
    findings = list(check(ROOT, names, words))
    if options.count:
        counts = Counter("/".join(finding.path.split("/")[:COUNTED_FOLDERS]) for finding in findings)
        print(*(f"{count:6} {folder}" for folder, count in counts.most_common()), sep="\n")
    else:
        print(*findings, sep="\n", end="\n" if findings else "")
    unused = [] if options.paths else words.unused()
    for exception in unused:
        print(f"{WORD_LIST.relative_to(ROOT)}: remove the exception {exception}: it accepts nothing")
    return 1 if findings or unused else 0


def _selected(names: Iterable[str], paths: Sequence[str]) -> Iterator[str]:
    wanted = [Path(path).resolve() for path in paths]
    for name in names:
        path = ROOT / name
        if not wanted or any(path == one or one in path.parents for one in wanted):
            yield name


if __name__ == "__main__":
    sys.exit(main())
