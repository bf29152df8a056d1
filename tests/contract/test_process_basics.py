import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from kvasir_contract.process_basics import directory_exists, name_user

_PROGRAM = """
import os, socket, sys
from kvasir_contract.process_basics import complete_process
complete_process()
opened = socket.socket()
print("to stdout"); print("to stderr", file=sys.stderr); read = sys.stdin.read(); sys.stdout.flush()
open(sys.argv[1], "w").write(f"{opened.fileno() > 2} {read!r} {sys.stdout.isatty()}")
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_replaced_and_keep_their_numbers(closed: str, tmp_path: Path) -> None:
    file = tmp_path / "seen"
    command = ["bash", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-c", _PROGRAM, str(file)]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert file.read_text() == "True '' False"


def test_open_streams_are_left_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path / "seen")]
    ended = subprocess.run(command, input=b"typed", capture_output=True, check=True)
    assert (ended.stdout, ended.stderr) == (b"to stdout\n", b"to stderr\n")
    assert "'typed'" in (tmp_path / "seen").read_text()


@pytest.fixture
def unknown_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}])
def test_an_unknown_user_gets_a_private_home(environ: dict[str, str], unknown_user: Path) -> None:
    name_user(environ)
    home = Path(environ["HOME"])
    assert environ["USER"] == str(os.getuid())
    assert home.parent == unknown_user
    assert home.stat().st_mode & 0o777 == 0o700
    again: dict[str, str] = {}
    name_user(again)
    assert again["HOME"] == str(home)


def test_an_unknown_user_keeps_the_given_home(unknown_user: Path) -> None:
    environ = {"HOME": "/given", "USER": "ada"}
    name_user(environ)
    assert environ == {"HOME": "/given", "USER": "ada"}


@pytest.mark.parametrize("how", ["open to all", "a link", "a file"])
def test_a_home_that_another_user_prepared_is_not_used(how: str, unknown_user: Path) -> None:
    prepared = unknown_user / f"kvasir-home-{os.getuid()}"
    if how == "open to all":
        prepared.mkdir()
        prepared.chmod(0o777)
    elif how == "a link":
        (unknown_user / "elsewhere").mkdir(mode=0o700)
        prepared.symlink_to(unknown_user / "elsewhere")
    else:
        prepared.touch(mode=0o700)
    environ: dict[str, str] = {}
    name_user(environ)
    assert environ["HOME"] not in ("", "/", str(prepared))


def test_a_known_user_keeps_the_environment() -> None:
    environ: dict[str, str] = {}
    name_user(environ)
    assert environ == {}


def test_a_deleted_working_directory_does_not_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert directory_exists()
    gone.rmdir()
    assert not directory_exists()
