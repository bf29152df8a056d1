import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

import pytest
from tools.check_words import ROOT, WordList, check, main
from tools.prose import Passage, passages, tracked_files

WORDS = WordList()
WORD = re.compile(r"[A-Za-z]+")

PAGE = """# A page that nobody reads

Text with `nobody` in code and a [link](nobody.md).

```
nobody
```

| cell | it runs
since 12 s |
"""

MODULE = '''"""Docstring.

Somebody reads it.
"""

name = "nobody"  # a comment that goes on
# anew in its second line
message = (
    f"a message of two pieces {name.get('nobody')} "
    "for nobody"
)


def run() -> None:
    """Tell."""
'''

MANIFEST = """# nobody
kind: Nobody
spec:
  description: >-
    A longer text
    for nobody
  field: {type: string, description: Told to nobody.}
  nobody: true
"""

SOURCE = """/* nobody
 * anew */
char *nobody = "nobody";  // rubbish
"""


def found(name: str, text: str) -> list[tuple[int, str]]:
    return [(f.line, f.word) for passage in passages(name, text) for f in WORDS.find(name, passage)]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("page.md", PAGE, [(1, "nobody"), (9, "runs since")]),
        ("module.py", MODULE, [(3, "Somebody"), (7, "anew"), (10, "nobody"), (15, "Tell")]),
        ("crd.yaml", MANIFEST, [(1, "nobody"), (6, "nobody"), (7, "Told"), (7, "nobody")]),
        ("kernels.c", SOURCE, [(1, "nobody"), (2, "anew"), (3, "rubbish")]),
        ("Makefile", "target: other  ## for nobody\n\tnobody\n", [(1, "nobody")]),
        ("data.json", '{"for": "nobody"}', []),
    ],
)
def test_prose_is_checked_and_code_is_not(name: str, text: str, expected: list[tuple[int, str]]) -> None:
    assert found(name, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the step runs since 12 s", ["runs since"]),
        ("70000 is no token", ["is no token"]),
        ("these are\nno blocks", ["are no blocks"]),
        ("there is no block, and it is no longer used", []),
        ("sends what it has and what was left", ["what it", "what was"]),
        ("What is a block? It is memory.", []),
        ("A foretold nobodyness besides", []),
        ("It obeys and hears", ["obeys", "hears"]),
    ],
)
def test_the_list_matches_whole_words(text: str, expected: list[str]) -> None:
    assert [f.word for f in WORDS.find("x.md", Passage(1, text))] == expected


def test_an_exception_accepts_only_its_phrase(tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text(
        '[words]\nnobody = "no client"\n'
        '[[exceptions]]\npath = "*.md"\nphrase = "user nobody"\nreason = "an account"\n'
    )
    words = WordList(tmp_path / "list.toml")
    text = Passage(1, "runs as the user\nnobody and tells nobody")
    assert words.unused()
    assert [f.line for f in words.find("page.md", text)] == [2]
    assert not words.unused()
    assert len(list(words.find("page.py", text))) == 2


def test_a_finding_names_place_word_and_suggestion(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("one\ntwo anew\n")
    (tmp_path / "broken.md").write_bytes(b"\xff")
    assert [str(f) for f in check(tmp_path, ["page.md", "broken.md"], WORDS)] == ["page.md:2: anew → again"]


def test_the_exit_code_shows_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tools.check_words.ROOT", tmp_path)
    monkeypatch.setattr("tools.check_words.tracked_files", lambda root: ["a.md", "b.md"])
    (tmp_path / "a.md").write_text("anew")
    (tmp_path / "b.md").write_text("again")
    assert main([str(tmp_path / "a.md")]) == 1
    assert main([str(tmp_path / "b.md")]) == 0


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    word_list = tmp_path / "tools/word_list.toml"
    words = word_list.read_text().split("[[exceptions]]")[0]
    word_list.write_text(words + '[[exceptions]]\npath = "tools/word_list.toml"\nreason = "is the list"\n')
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    return tmp_path


def lint(repository: Path) -> subprocess.CompletedProcess[str]:
    """Run the checker as `make lint` does."""
    command = [sys.executable, "-m", "tools.check_words"]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})


@pytest.mark.parametrize(
    ("name", "text", "finding"),
    [
        ("docs/page.md", "The engine tells the frontend.\n", "docs/page.md:1: tells → "),
        ("module.py", '"""One line.\n\nIt sends what is left.\n"""\n', "module.py:3: what is → "),
        ("Makefile", "up:  ## serve the model anew\n", "Makefile:1: anew → again"),
    ],
)
def test_lint_fails_on_a_phrase_of_the_dialect(repository: Path, name: str, text: str, finding: str) -> None:
    (repository / name).parent.mkdir(exist_ok=True)
    (repository / name).write_text(text)
    result = lint(repository)
    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout.startswith(finding)


def test_lint_passes_on_clean_files(repository: Path) -> None:
    (repository / "page.md").write_text("The engine reports its load to the frontend.\n")
    (repository / "module.py").write_text('"""Return the rest."""\n')
    assert (lint(repository).returncode, lint(repository).stdout) == (0, "")


def test_lint_fails_on_an_unused_exception(repository: Path) -> None:
    with (repository / "tools/word_list.toml").open("a") as file:
        file.write('[[exceptions]]\npath = "old.md"\nreason = "gone"\n')
    result = lint(repository)
    assert result.returncode == 1
    assert "remove the exception path = 'old.md'" in result.stdout


def test_python_is_split_as_the_tokenizer_does_it() -> None:
    """Every word of our Python prose is a word of a token that Python calls a comment or a string, as often."""
    names = [name for name in tracked_files(ROOT) if name.startswith("runtime/") and name.endswith(".py")]
    assert names
    for name in names:
        text = (ROOT / name).read_text()
        ours = Counter(word for passage in passages(name, text) for word in WORD.findall(passage.text))
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        prose = (token.string for token in tokens if token.type in (tokenize.COMMENT, tokenize.STRING))
        theirs = Counter(word for string in prose for word in WORD.findall(_with_breaks(string)))
        assert not ours - theirs, name


def _with_breaks(literal: str) -> str:
    """Return a literal of Python with its escaped line breaks as spaces; a raw one has none."""
    prefix = literal[: literal.index(literal[-1])] if literal[-1] in "\"'" else ""
    return literal if "r" in prefix.lower() else literal.replace("\\n", " ")


def test_the_checker_itself_passes() -> None:
    assert not list(check(ROOT, [name for name in tracked_files(ROOT) if name.startswith("tools/")], WordList()))
