"""The figures of a small repository, and of an older commit of it."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tools.code_figures import Figure, main, record, tree_at, tree_of, worse


@pytest.fixture
def git(tmp_path: Path) -> Callable[..., None]:
    def run(*arguments: str) -> None:
        names = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
        subprocess.run(["git", "-C", str(tmp_path), *names, *arguments], check=True, capture_output=True)

    run("init", "-q")
    return run


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def figures(root: Path, commit: str = "") -> dict[str, float]:
    tree = tree_at(root, commit) if commit else tree_of(root)
    return {figure.name: figure.value for figure in tree.figures()}


def test_code_figures_count_names_lengths_and_words(tmp_path: Path, git: Callable[..., None]) -> None:
    write(tmp_path, "runtime/a/one.py", "class One:\n    pass\n\n\nclass _Own:\n    pass\n")
    write(tmp_path, "runtime/a/__init__.py", "")
    write(
        tmp_path, "operator/b/one.py", "class One:\n    def run(self) -> None:\n        pass\n\n\nclass _Own: ...\n"
    )
    write(tmp_path, "operator/b/two.py", "# two\n" * 301)
    write(tmp_path, "tests/one.py", "class One: ...\n")
    write(tmp_path, "page.md", "It is written anew " + "with words " * 8)
    counted = figures(tmp_path)
    assert counted["modules in the largest folder"] == 2
    assert counted["module names used twice"] == 1
    assert counted["public class names used twice"] == 1
    assert counted["lines of the longest function"] == 2
    assert counted["files over 300 lines"] == 1
    assert counted["words of prose"] == 301 + 20
    assert counted["words to avoid"] == 1


def test_code_figures_of_a_commit_ignore_later_changes(tmp_path: Path, git: Callable[..., None]) -> None:
    write(tmp_path, "runtime/one.py", "x = 1\n")
    git("add", ".")
    git("commit", "-qm", "first")
    write(tmp_path, "operator/one.py", "x = 1\n")
    assert figures(tmp_path)["module names used twice"] == 1
    assert figures(tmp_path, "HEAD")["module names used twice"] == 0


def test_code_figures_prints_two_columns(
    tmp_path: Path, git: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "page.md", "one\n")
    git("add", ".")
    git("commit", "-qm", "first")
    write(tmp_path, "page.md", "one two\n")
    monkeypatch.setattr("tools.code_figures.ROOT", tmp_path)
    assert main(["--ref", "HEAD", "--places"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["HEAD", "now"] in lines
    assert ["words", "of", "prose", "1", "2"] in lines


def test_code_figures_count_prose_limits_and_cycles(tmp_path: Path, git: Callable[..., None]) -> None:
    write(tmp_path, "runtime/a/__init__.py", "")
    write(
        tmp_path,
        "runtime/a/one.py",
        '"""The first of two."""\n\nfrom a import two\n\n_MOST_ROWS = 2  # as many as fit\n'
        '"""Of an engine."""\nx = two\n',
    )
    write(tmp_path, "runtime/a/two.py", 'def run() -> None:\n    """Run once."""\n    from a.one import x\n')
    write(tmp_path, "tests/test_a.py", f"def test_{'x' * 56}() -> None: ...\n")
    counted = figures(tmp_path)
    assert counted["docstrings that begin with a fragment"] == 1
    assert counted["product modules without a docstring"] == 1  # two.py
    assert counted["limits named MOST_ or LEAST_"] == 1
    assert counted["modules in import cycles"] == 2
    assert counted["test names over 60 characters"] == 1
    assert counted["words per 100 lines in runtime"] == 260  # 4 + 3 + 2 + 4 words, 5 lines
    assert counted["percent in comments in runtime"] == 30.8


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tools.code_figures.RECORDED", tmp_path / "figures.toml")
    return tmp_path / "figures.toml"


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        (Figure("names", 3), Figure("names", 3), 0),
        (Figure("names", 3), Figure("names", 4), 1),
        (Figure("words", 90.5, goal=120), Figure("words", 120, goal=120), 0),  # the goal stays reached
        (Figure("words", 90.5, goal=120), Figure("words", 120.5, goal=120), 1),
        (Figure("words", 150.5, goal=120), Figure("words", 150.9, goal=120), 0),
        (Figure("share", 20.9, goal=25, rises=True), Figure("share", 20, goal=25, rises=True), 0),
        (Figure("share", 20.9, goal=25, rises=True), Figure("share", 19.9, goal=25, rises=True), 1),
        (Figure("lines", 1, goal=None), Figure("lines", 9, goal=None), 0),
    ],
)
def test_code_figures_may_not_get_worse(recorded: Path, before: Figure, now: Figure, found: int) -> None:
    record([before])
    assert len(list(worse([now]))) == found
