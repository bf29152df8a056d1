import json
from pathlib import Path

import pytest

from kvasir.cli import main


def test_startup_tells_phases_and_memory_of_a_real_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = tmp_path / "figures.json"
    options = ("--repeat", "1", "--kv-cache-memory-bytes", "8Mi", "--json", str(file))
    assert main.main(["bench", "startup", "demo://", *options]) == 0
    figures = json.loads(file.read_text())
    seconds = {name: values["median"] for name, values in figures["seconds"].items()}
    assert 0 < seconds["frontend answers"] <= seconds["ready"]
    assert list(figures["engine_phase_seconds"]) == ["Launching", "Starting", "Loading", "Warming"]
    assert set(figures["peak_memory_bytes"]) == {"supervisor", "frontend", "engine"}
