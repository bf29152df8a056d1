"""Finds the prose of a file: comments, docstrings, messages, descriptions and pages, with their line numbers.

Code is not prose: fenced blocks of a page, text between backticks, and string literals of fewer than four words.
"""

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MIN_WORDS_OF_A_LITERAL = 4


@dataclass(frozen=True)
class Passage:
    """Prose that belongs together. Line breaks of the file are line breaks of the text."""

    line: int  # of its first character, counted from 1
    text: str


def tracked_files(root: Path) -> list[str]:
    """Return the relative paths of all files that git tracks or would track."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(name for name in set(listed.stdout.splitlines()) if (root / name).is_file())


def passages(name: str, text: str) -> Iterator[Passage]:
    # By the kind of file that its name shows; nothing for an unknown kind.
    path = Path(name)
    reader = _READERS.get(path.suffix) or _READERS_BY_NAME.get(path.name)
    if reader is not None:
        yield from reader(text)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


# -- Python -------------------------------------------------------------------------------------------------------

_LITERAL = r'''"""(?:[^\\]|\\.)*?"""|\'\'\'(?:[^\\]|\\.)*?\'\'\'|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*\''''
_PYTHON = re.compile(rf"(?P<comment>\#[^\n]*)|(?P<prefix>\b[rbfuRBFU]{{1,2}})?(?P<literal>{_LITERAL})", re.S)
_INTERPOLATION = re.compile(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")


def _python(text: str) -> Iterator[Passage]:
    """Yield comments and literals. Pieces with only white space between them are one passage."""
    start, end, parts, kind = 0, 0, "", ""
    for match in _PYTHON.finditer(text):
        found = "comment" if match["comment"] is not None else "literal"
        between = text[end : match.start()]
        joined = found == kind and not between.strip() and (kind == "literal" or between.count("\n") == 1)
        if not joined:
            yield from _python_passage(text, start, parts, kind)
            start, parts, kind = match.start(), "", found
        else:
            parts += "\n" * between.count("\n")
        parts += _comment(match["comment"]) if found == "comment" else _literal(match)
        end = match.end()
    yield from _python_passage(text, start, parts, kind)


def _comment(text: str) -> str:
    return text.lstrip("#: ")


def _literal(match: re.Match[str]) -> str:
    """Return the text between the quotes, without an f-string's expressions; a docstring begins with a mark."""
    literal, prefix = match["literal"], (match["prefix"] or "").lower()
    triple = literal.startswith(('"""', "'''"))
    inner = literal[3:-3] if triple else literal[1:-1]
    if "f" in prefix:
        inner = _INTERPOLATION.sub(lambda found: "…" + "\n" * found[0].count("\n"), inner)
    return _TRIPLE + inner if triple else inner.replace("\\n", "  ")


_TRIPLE = "\0"  # marks a docstring, which counts however short it is


def _python_passage(text: str, start: int, parts: str, kind: str) -> Iterator[Passage]:
    if not parts:
        return
    prose = parts.replace(_TRIPLE, "")
    if kind == "comment" or _TRIPLE in parts or len(prose.split()) >= MIN_WORDS_OF_A_LITERAL:
        yield from _paragraphs(prose, _line(text, start))


# -- other kinds --------------------------------------------------------------------------------------------------

_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.S | re.M)
_TARGET = re.compile(r"\]\([^)\n]*\)")
_C = re.compile(r'(?P<block>/\*.*?\*/)|(?P<line>//[^\n]*(?:\n[ \t]*//[^\n]*)*)|"(?:[^"\\\n]|\\.)*"', re.S)
_HASH = re.compile(r"(?:^|[ \t])#[^\n]*(?:\n[ \t]*#[^\n]*)*", re.M)
_DESCRIPTION = re.compile(
    r"^(?P<indent> *)(?:- )?[^#\n]*?\b(?:description|message|summary): *"
    r"(?P<text>[^\n]*(?:\n(?P=indent)  +[^\n]*)*)",
    re.M,
)


def _page(text: str) -> Iterator[Passage]:
    text = _FENCE.sub(_blank, text)
    yield from _paragraphs(_TARGET.sub("]", text), 1)


def _c(text: str) -> Iterator[Passage]:
    for match in _C.finditer(text):
        comment = match["block"] or match["line"]
        if comment is not None:
            yield from _paragraphs(
                re.sub(r"^[ \t]*(?://|/?\*+/?)|\*/$", "", comment, flags=re.M), _line(text, match.start())
            )


def _hash_comments(text: str) -> Iterator[Passage]:
    for match in _HASH.finditer(text):
        comment = re.sub(r"^[ \t]*#+", "", match[0], flags=re.M)
        yield from _paragraphs(comment, _line(text, match.start()))


def _yaml(text: str) -> Iterator[Passage]:
    yield from _hash_comments(text)
    for match in _DESCRIPTION.finditer(text):
        yield from _paragraphs(match["text"], _line(text, match.start("text")))


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


_READERS: dict[str, Callable[[str], Iterator[Passage]]] = {
    ".py": _python,
    ".md": _page,
    ".yaml": _yaml,
    ".toml": _python,
    ".sh": _hash_comments,
    **dict.fromkeys([".c", ".h", ".inc", ".go"], _c),
}
_READERS_BY_NAME = dict.fromkeys(["Makefile", "Dockerfile", "Kustomization", ".dockerignore"], _hash_comments)

# -- paragraphs ---------------------------------------------------------------------------------------------------

_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.S)


def _paragraphs(prose: str, line: int) -> Iterator[Passage]:
    """Yield paragraphs without code, with one space or line break between two words."""
    prose = _CODE.sub(lambda match: "`…`" + _blank(match), prose)
    for paragraph in re.split(r"\n[ \t]*(?=\n)", prose):
        text = paragraph.lstrip("\n")
        lines = [" ".join(part.split()) for part in text.rstrip().split("\n")]
        if any(lines):
            yield Passage(line + len(paragraph) - len(text), "\n".join(lines))
        line += paragraph.count("\n") + 1
