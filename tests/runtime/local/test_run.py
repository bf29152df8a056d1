import json
import shlex
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kvasir.config.options import ConfigError
from kvasir.local.place import open_place
from kvasir.local.process_specs import engine_spec, frontend_spec
from kvasir.local.run import LocalService, program, write_targets


def test_targets_are_the_probe_ports_of_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with closing(open_place("demo", host="127.0.0.1", port=0, frontends=1, engines=1)) as place:
        specs = [frontend_spec(place, 0, [], {}, grace=1.0), engine_spec(place, 0, [], {}, grace=1.0)]
        service = LocalService(place, specs, served_name="demo", use="generate", needs_key=False)
        write_targets(service, tmp_path / "targets.json")
        ports = (*place.frontend_ops_ports, *place.engine_ops_ports)
        assert json.loads((tmp_path / "targets.json").read_text()) == [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"service": "demo", "process": name}}
            for port, name in zip(ports, ("frontend-0", "engine-0"), strict=True)
        ]
        with pytest.raises(ConfigError, match=r"cannot write .* set XDG_STATE_HOME"):
            write_targets(service, tmp_path)


def test_the_printed_program_can_be_started_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("venv bin", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "kvasir").touch(mode=0o755)
    running = str(tmp_path / "venv bin" / "kvasir")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert program(running) == f"'{running}'"
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert program(running) == f"'{running}'"
    monkeypatch.setenv("PATH", str(tmp_path / "venv bin"))
    assert program(running) == "kvasir"
    assert program("/x/main.py") == f"{shlex.quote(sys.executable)} -m kvasir.cli.main"
