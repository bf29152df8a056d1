"""The figures of a small repository, and of an older commit of it."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tools.code_figures import main, tree_at, tree_of


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
