from pathlib import Path

import pytest

from kvasir.hub.made_once import made_once


def test_made_once_keeps_the_result_of_the_faster_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def make(text: str, folder: Path) -> None:
        (folder / "file").write_text(text)

    def slow(folder: Path) -> None:
        made_once("kind", "key", "it", lambda other: make("first", other))
        make("second", folder)

    path = made_once("kind", "key", "it", slow)
    assert (path / "file").read_text() == "first"
    assert made_once("kind", "key", "it", slow) == path
    assert [entry.name for entry in path.parent.iterdir()] == ["key"]
