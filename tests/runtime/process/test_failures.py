import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvasir.config.options import ConfigError
from kvasir.hub.hub_errors import DownloadFailed, HubError, ModelNotFound
from kvasir.process.failures import end, failure_of, log_failure
from kvasir_contract.exits import ExitCode
from kvasir_contract.failure import TERMINATION_MESSAGE_VARIABLE, Failure, find_failure
from kvasir_contract.logs import read_line, setup_logging
from kvasir_contract.reasons import Reason


def _of_a_cpu() -> RuntimeError:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    return raised.value


@pytest.mark.parametrize(
    ("error", "reason", "code"),
    [
        (ConfigError("m"), Reason.INVALID_SPEC, ExitCode.USER_ERROR),
        (HubError("m"), Reason.INVALID_SPEC, ExitCode.USER_ERROR),
        (ModelNotFound("m"), Reason.MODEL_NOT_FOUND, ExitCode.USER_ERROR),
        (DownloadFailed("m"), Reason.DOWNLOAD_FAILED, ExitCode.FAILED),
        (MemoryError(), Reason.OUT_OF_MEMORY, ExitCode.FAILED),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), Reason.OUT_OF_MEMORY, ExitCode.FAILED),
        (_of_a_cpu(), Reason.OUT_OF_MEMORY, ExitCode.FAILED),
        (RuntimeError("device lost"), Reason.CRASH_LOOPING, ExitCode.FAILED),
        (OSError(5, "I/O error"), Reason.CRASH_LOOPING, ExitCode.FAILED),
    ],
)
def test_failure_of_each_kind_of_error(error: Exception, reason: Reason, code: ExitCode) -> None:
    failure = failure_of(error)
    assert failure.reason is reason
    assert end(failure) is code
    if isinstance(error, ConfigError):
        assert failure.message == "m"
    if reason is Reason.OUT_OF_MEMORY:
        assert "lower --kv-cache-memory-bytes" in failure.message
    if reason is Reason.CRASH_LOOPING:
        assert failure.message.startswith(type(error).__name__ + ": ")


def test_end_without_failure_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert end(None) is ExitCode.OK
    assert capsys.readouterr() == ("", "")


def test_log_failure_shows_a_traceback_of_our_defects_only(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("test")
    log_failure(log, ConfigError("--dtype x"), "the engine failed")
    log_failure(log, RuntimeError("device lost"), "the engine failed in phase Ready")
    mistake, defect = caplog.records
    assert (mistake.getMessage(), mistake.exc_info) == ("--dtype x", None)
    assert defect.getMessage() == "the engine failed in phase Ready"
    assert defect.exc_info is not None


@pytest.mark.parametrize(
    ("argv", "reason", "says"),
    [
        (["engine", "demo://", "--max-nun-seqs", "3"], Reason.INVALID_SPEC, "did you mean --max-num-seqs"),
        (["engine"], Reason.INVALID_SPEC, "MODEL"),
        (["engine", "demo://"], Reason.INVALID_SPEC, "an engine needs --link"),
        (["frontend", "demo://", "--port", "x"], Reason.INVALID_SPEC, "argument --port: 'x' is not a whole number"),
        (["frontend", "demo://"], Reason.INVALID_SPEC, "a frontend needs one --link address"),
        (
            ["frontend", "/no/such", "--port", "0", "--ops-port", "0", "--link", "ipc:///tmp/kvasir-unused-link"],
            Reason.MODEL_NOT_FOUND,
            "/no/such does not exist",
        ),
    ],
)
def test_process_reports_its_failure_last(argv: list[str], reason: Reason, says: str, tmp_path: Path) -> None:
    message = tmp_path / "termination-log"
    done = run(argv, {TERMINATION_MESSAGE_VARIABLE: str(message)})
    assert done.returncode == ExitCode.USER_ERROR
    last = done.stderr.splitlines()[-1]
    failure = Failure.from_json(last)
    assert failure is not None
    assert failure.reason is reason
    assert says in failure.message
    assert message.read_text() == f"{last}\n"
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) > 1, "people read a sentence, not JSON"


@pytest.mark.parametrize("command", ["engine", "frontend"])
def test_process_refuses_variables_beside_the_templates(command: str) -> None:
    env = {
        "KVASIR_MANAGED_VARIABLES": "KVASIR_LINK",
        "KVASIR_LINK": "ipc:///tmp/kvasir-unused",
        "KVASIR_DTYPE": "x",
    }
    done = run([command, "demo://"], env)
    assert done.returncode == ExitCode.USER_ERROR
    failure = find_failure(done.stderr)
    assert failure is not None
    assert (failure.reason, failure.message.partition(":")[0]) == (Reason.INVALID_SPEC, "KVASIR_DTYPE")


def test_other_commands_report_no_failure() -> None:
    for argv in (["up", "/no/such.yaml"], ["serve", "/no/such"], ["bench", "startup", "/no/such"], ["chat", "--x"]):
        done = run(argv, {})
        assert done.returncode == ExitCode.USER_ERROR
        assert find_failure(done.stderr) is None


def run(argv: list[str], env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "kvasir.cli.main", *argv],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("format", ["text", "json"])
def test_read_line_reads_what_the_formatters_write(format: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        setup_logging("engine-0", "info", format)
        logging.getLogger("kvasir.x").warning('careful with "%s"', "a\\b")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert read_line(capsys.readouterr().err.strip()) == ("warning", 'careful with "a\\b"')


@pytest.mark.parametrize("line", ["", "WARNING of another library", "{", "{}", '{"level": 1}', json.dumps([1])])
def test_read_line_refuses_other_lines(line: str) -> None:
    assert read_line(line) is None
