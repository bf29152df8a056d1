import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvasir.cli.main import COMMANDS, main
from kvasir_contract.exits import ExitCode


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([command, "--help"])
    assert exit_.value.code == 0
    assert f"kvasir {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serv"], "unknown command 'serv'; did you mean serve?"),
        (["quux"], "unknown command 'quux'; choose from up, serve"),
        (["engine", "demo://"], "an engine needs --link"),
        (["frontend", "demo://"], "a frontend needs one --link address"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    "argv",
    [
        ["chat", "http://127.0.0.1:9", "-m", "hello"],
        ["complete", "http://127.0.0.1:9", "hello"],
        ["bench", "serve", "http://127.0.0.1:9"],
    ],
)
def test_a_server_that_is_away_is_one_line_and_exit_code_1(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"kvasir {argv[0]}: no ")
    assert printed.count("\n") == 1


@pytest.mark.parametrize("argv", [[], ["help"], ["bench"]])
def test_without_a_command_it_says_what_it_can_do(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    assert "usage: kvasir " in capsys.readouterr().out


def test_a_reader_that_leaves_ends_a_command_without_a_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "kvasir.cli.main", "help"]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (ExitCode.BROKEN_PIPE, "")


@pytest.mark.parametrize(("pid", "handled"), [(1, True), (2, False)])
def test_sigterm_ends_the_first_process_of_a_container(pid: int, handled: bool) -> None:
    """The kernel drops it otherwise, and a pod that is deleted as it starts would serve until it is killed."""
    code = (
        f"import os; os.getpid = lambda: {pid}; import kvasir.cli, signal; "
        f"print(callable(signal.getsignal(signal.SIGTERM)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == f"{handled}\n"


@pytest.mark.parametrize(("pid", "code"), [(1, 0), (4711, -signal.SIGTERM)])
def test_a_blocked_sigterm_is_delivered_by_the_first_import(pid: int, code: int) -> None:
    """The images block it until there is a handler. Child processes then inherit no blocked signal."""
    program = (
        "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); "
        f"os.kill(os.getpid(), signal.SIGTERM); os.getpid = lambda: {pid}; print('blocked', flush=True); "
        "import kvasir.cli; print('not delivered')"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (code, "blocked\n")


@pytest.mark.parametrize("argv", [[], ["--version"], ["nonsense"], *([command, "--help"] for command in COMMANDS)])
def test_commands_run_with_all_streams_closed(argv: list[str]) -> None:
    command = ["bash", "-c", 'exec "$0" "$@" <&- >&- 2>&-', sys.executable, "-m", "kvasir.cli.main", *argv]
    assert subprocess.run(command, check=False).returncode == (2 if argv == ["nonsense"] else 0)


@pytest.mark.parametrize(
    "argv",
    [*(["--version"], ["completion"], ["collect-env"]), *([command, "--help"] for command in COMMANDS)],
)
def test_a_full_disk_is_one_line_and_exit_code_1(argv: list[str]) -> None:
    command = ["bash", "-c", 'exec "$0" "$@" > /dev/full', sys.executable, "-m", "kvasir.cli.main", *argv]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.stderr == "kvasir: cannot write the output: No space left on device\n"
    assert ended.returncode == 1


def test_settings_of_a_file_are_refused_with_their_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text("model: demo://\ntensor-parallel-size: 3\n")
    assert main(["serve", f"--config={tmp_path}/c.yaml"]) == 2
    assert f"choose 1 or 2 or 4 ({tmp_path}/c.yaml, line 2)\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("--version", 0),
        ("completion", 0),
        ("collect-env", 0),
        ("serve demo://", 2),
        ("serve ./model", 2),
        ("up manifest.yaml", 2),
        ("bench latency demo://", 2),
        ("run-batch -i in -o out demo://", 2),
        ("frontend demo:// --link tcp://*:9", 2),
        ("engine demo:// --link tcp://127.0.0.1:9", 2),
    ],
)
def test_a_deleted_directory_is_named_or_not_needed(command: str, code: int, tmp_path: Path) -> None:
    program = f"{sys.executable} -P -m kvasir.cli.main"
    shell = f"mkdir gone && cd gone && rmdir ../gone && exec {program} {command}"
    ended = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
    assert ("the working directory has been deleted" in ended.stderr) == (code == 2)
