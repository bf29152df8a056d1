"""The choice of the Go command that builds the programs."""

from pathlib import Path

import pytest

from e2e.kind import cache
from e2e.kind.build import binaries
from e2e.kind.progress import Log


@pytest.mark.parametrize(
    ("version", "taken"),
    [("go1.26.1", True), ("go1.25rc1", True), ("go1.19.8", False), ("devel", False), (None, False)],
)
def test_this_machines_go_is_taken_where_it_is_new_enough(
    version: str | None, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    cache.make("go", cache.digest(binaries._GO_PACKAGE), lambda out: None)  # as if it had been installed
    ours = tmp_path / "go"
    if version is not None:
        ours.write_text(f"#!/bin/sh\necho {version}\n")
        ours.chmod(0o755)
    go = Path(binaries._go(Log(tmp_path / "log")))
    assert (go == ours) == taken
    assert taken or go.is_relative_to(cache.folder())
