import json
from pathlib import Path

import pytest

from kvasir_contract.failure import (
    MAX_LINE_BYTES,
    MAX_MESSAGE_BYTES,
    TERMINATION_MESSAGE_VARIABLE,
    Failure,
    cut,
    find_failure,
    report_failure,
)
from kvasir_contract.reasons import Reason

SPOILT = Failure(Reason.INVALID_SPEC, "--dtype float8: choose auto, float32, bfloat16 or float16")


@pytest.mark.parametrize(
    "message",
    [
        "",
        "a line\nand another",
        'quotes " and \\ backslashes',
        "naïve 漢字 🦉",
        "a\u2028line\u2029separator\x85 and \x1c",
        "\ud800 half of a pair",
    ],
)
def test_failure_is_found_again_in_its_own_line(message: str) -> None:
    written = Failure(Reason.CRASH_LOOPING, message).to_json()
    assert "\n" not in written
    found = find_failure(f"some log line\n{written}\n")
    assert found == Failure(Reason.CRASH_LOOPING, message.encode("utf-8", "replace").decode())


@pytest.mark.parametrize("character", ["x", "ß", "漢", "🦉", "\n", "\x01", '"', "\ud800"])
def test_failure_fits_into_a_termination_message(character: str) -> None:
    line = Failure(Reason.OUT_OF_MEMORY, character * 10_000).to_json()
    assert len(f"{line}\n".encode()) <= MAX_LINE_BYTES
    found = find_failure(line)
    assert found is not None
    assert found.reason is Reason.OUT_OF_MEMORY
    assert found.message.endswith("…")


def test_cut_ends_between_characters() -> None:
    assert cut("🦉" * 10, 40) == "🦉" * 10
    assert cut("🦉" * 11, 40) == "🦉" * 9 + "…"
    assert cut("ab" * 10, 19) == "ab" * 8 + "…"
    assert cut("漢漢", 3) == "…"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "null",
        "[]",
        '"text"',
        "{}",
        '{"reason": "InvalidSpec"}',
        '{"reason": "NoSuchReason", "message": "m"}',
        '{"reason": ["InvalidSpec"], "message": "m"}',
        '{"reason": {"a": 1}, "message": "m"}',
        '{"reason": null, "message": "m"}',
        '{"level": "error", "message": "a log line in JSON"}',
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
)
def test_failure_is_not_read_from_other_lines(line: str) -> None:
    assert Failure.from_json(line) is None
    assert find_failure(line) is None


def test_failure_of_a_foreign_writer_is_cut() -> None:
    failure = Failure.from_json(json.dumps({"reason": "CrashLooping", "message": "x" * 100_000}))
    assert failure is not None
    assert len(failure.message.encode()) == MAX_MESSAGE_BYTES


def test_find_failure_takes_the_last_of_several() -> None:
    first = Failure(Reason.LINK_REFUSED, "first")
    text = "\n".join(
        [first.to_json(), "2026-01-01T00:00:00Z ERROR frontend text", SPOILT.to_json(), "{not json", ""]
    )
    assert find_failure(text) == SPOILT
    assert find_failure("") is None
    assert find_failure("Traceback (most recent call last):\n  boom") is None


def test_report_failure_writes_file_and_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "termination-log"
    path.write_text("of an earlier run")
    report_failure(SPOILT, {TERMINATION_MESSAGE_VARIABLE: str(path)})
    assert path.read_text() == f"{SPOILT.to_json()}\n"
    assert capsys.readouterr().err == f"{SPOILT.to_json()}\n"


def test_report_failure_needs_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_failure(SPOILT, {})
    assert capsys.readouterr().err == f"{SPOILT.to_json()}\n"
    report_failure(SPOILT, {TERMINATION_MESSAGE_VARIABLE: str(tmp_path)})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"cannot write the termination message {tmp_path}: Is a directory"
    assert find_failure(lines[-1]) == SPOILT
