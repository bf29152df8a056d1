import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvasir.cli.main import main
from kvasir.local.log_directory import LogDirectory, log_root

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def service(name: str, started: int, **logs: str) -> Path:
    directory = log_root() / name
    directory.mkdir(parents=True)
    for process, text in logs.items():
        (directory / f"{process.replace('_', '-')}.log").write_text(text)
    os.utime(directory, (started, started))
    return directory


def at(second: int, text: str) -> str:
    return f"2026-11-28T09:00:{second:02}.000Z INFO    x {text}\n"


def test_logs_are_merged_by_time(capsys: pytest.CaptureFixture[str]) -> None:
    service("demo-8000", 1, engine_0=at(1, "one") + "Traceback\n" + at(4, "four"), frontend_0=at(2, "two"))
    assert main(["logs"]) == 0
    lines = [line.replace(" x ", " ") for line in capsys.readouterr().out.splitlines()]
    assert [line.split()[0] for line in lines] == ["engine-0", "engine-0", "frontend-0", "engine-0"]
    assert [line.split()[-1] for line in lines] == ["one", "Traceback", "two", "four"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], "new"),
        (["demo"], "b"),
        (["demo-8000"], "a"),
        (["demo-8000", "-n", "0"], ""),
        (["other", "--process", "engine-0"], "new"),
    ],
)
def test_logs_choose_the_service(words: list[str], shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    service("demo-8000", 1, engine_0="a\n")
    service("demo-8001", 2, engine_0="b\n")
    service("other-1", 3, engine_0="new\n")
    assert main(["logs", *words]) == 0
    assert capsys.readouterr().out.split()[2:] == shown.split()


@pytest.mark.parametrize(
    ("words", "message"),
    [(["nothing"], "no logs of nothing: there are demo-1"), (["--process", "x"], "has logs of engine-0")],
)
def test_logs_name_what_there_is(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    service("demo-1", 1, engine_0="a\n")
    assert main(["logs", *words]) == 2
    assert message in capsys.readouterr().err


def test_logs_follow_until_the_service_ends() -> None:
    directory = LogDirectory("demo-1")
    log = (directory.path / "engine-0.log").open("w", buffering=1)
    log.write("first\nsec")
    command = [sys.executable, "-m", "kvasir.cli.main", "logs", "-f"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "engine-0 | first\n"
        log.write("ond\n")
        assert following.stdout.readline() == "engine-0 | second\n"
        (directory.path / "frontend-0.log").write_text("third\n")
        assert following.stdout.readline() == "frontend-0 | third\n"
        log.write("last\n")
        directory.close()
        assert following.stdout.read() == "engine-0   | last\n"
    assert following.returncode == 0


def test_logs_print_the_unfinished_line_of_an_ended_process(capsys: pytest.CaptureFixture[str]) -> None:
    service("demo-1", 1, engine_0="one\nterminate called")
    assert main(["logs"]) == 0
    assert capsys.readouterr().out == "engine-0 | one\nengine-0 | terminate called\n"


def test_logs_that_cannot_be_read_are_an_error_of_a_line(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = service("demo-1", 1, engine_0="a\n")

    def refuse(path: object, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    for function, refused in (("listdir", log_root()), ("open", directory)):  # root may read all
        with monkeypatch.context() as patched:
            patched.setattr(os, function, refuse)
            assert main(["logs", "-f"]) == 2
        assert capsys.readouterr().err.endswith(f"kvasir logs: cannot read {refused}: Permission denied\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(directory / "engine-0.log"))
    assert main(["logs"]) == 2
    assert capsys.readouterr().err.endswith("engine-0.log/kvasir: Not a directory\n")


def test_a_start_leaves_the_logs_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [service(f"old-{number}", number) for number in range(1, 23)]
    real = os.open

    def open_own(path: object, *more: int, **named: int) -> int:
        if Path(str(path)) in others:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(str(path), *more, **named)

    monkeypatch.setattr(os, "open", open_own)
    LogDirectory("new-1").close()
    assert all(path.exists() for path in others)


def test_a_start_removes_the_logs_of_old_runs() -> None:
    running = LogDirectory("running-1")
    os.utime(running.path, (1, 1))
    old = [service(f"old-{number}", number + 2) for number in range(22)]
    LogDirectory("new-1").close()
    assert [path.exists() for path in old] == [False, False, *[True] * 20]
    assert running.path.exists()
    running.close()
