"""--log-config-file: the user's own dictConfig."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kvasir.config.options import ConfigError
from kvasir.frontend.telemetry.log_config import apply_log_config
from kvasir_contract.exits import ExitCode
from kvasir_contract.logs import record_origins

NAME = "kvasir.frontend.test_log_config"


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    record_origins(True)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger(NAME).handlers.clear()


@pytest.mark.parametrize("kind", ["json", "yaml"])
def test_a_file_configures_the_loggers_that_it_names(tmp_path: Path, kind: str) -> None:
    existing, other = logging.getLogger(NAME), logging.getLogger("kvasir.frontend.another")
    out = tmp_path / "out.log"
    config = {
        "version": 1,
        "formatters": {"json": {"()": "kvasir_contract.logs.JsonFormatter", "process": "mine"}},
        "handlers": {"file": {"class": "logging.FileHandler", "filename": str(out), "formatter": "json"}},
        "loggers": {NAME: {"handlers": ["file"], "level": "DEBUG"}},
    }
    file = tmp_path / f"logs.{kind}"
    file.write_text(json.dumps(config) if kind == "json" else yaml.safe_dump(config))
    apply_log_config(str(file))
    existing.debug("written")
    line = json.loads(out.read_text())
    assert (line["process"], line["level"], line["message"]) == ("mine", "debug", "written")
    assert not other.disabled


def test_a_format_can_have_the_process_and_thread(tmp_path: Path) -> None:
    """Without a file, records have neither."""
    record_origins(False)
    out = tmp_path / "out.log"
    config = {
        "version": 1,
        "formatters": {"own": {"format": "%(process)d %(threadName)s %(processName)s"}},
        "handlers": {"file": {"class": "logging.FileHandler", "filename": str(out), "formatter": "own"}},
        "loggers": {NAME: {"handlers": ["file"], "level": "DEBUG"}},
    }
    (tmp_path / "logs.json").write_text(json.dumps(config))
    apply_log_config(str(tmp_path / "logs.json"))
    logging.getLogger(NAME).info("written")
    assert out.read_text() == f"{os.getpid()} MainThread MainProcess\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "is not JSON"),
        ("a.yaml", "a: [", "is not YAML"),
        ("a.yaml", "- 1", "is not an object"),
        ("a.yaml", "a: 1", "version"),
        ("a.json", '{"version": 1, "handlers": {"x": {"class": "no.such.Class"}}}', "Unable to configure handler"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"--log-config-file {file}.*{message}"):
        apply_log_config(str(file))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match="--log-config-file /no/such/file: No such file"):
        apply_log_config("/no/such/file")


def test_a_frontend_applies_the_file(tmp_path: Path) -> None:
    file = tmp_path / "logs.yaml"
    file.write_text("version: 1\nroot: {level: nonsense}\n")
    result = subprocess.run(
        [
            *(sys.executable, "-m", "kvasir.cli.main", "frontend", "demo://", "--link", "ipc:///tmp/kvasir-unused"),
            *("--port", "0", "--log-config-file", str(file)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == ExitCode.USER_ERROR
    assert f"--log-config-file {file}: Unable to configure root logger" in result.stderr
    assert "Traceback" not in result.stderr
