"""The command line's manners: help, unknown commands, one-line errors with exit code 2."""

import pytest

from kvasir.cli.main import COMMANDS, main


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
        (["serv"], "there is no command 'serv'; choose from up, serve"),
        (["engine", "demo://"], "an engine needs --link"),
        (["frontend", "demo://"], "a frontend needs one --link address"),
        (["chat", "http://127.0.0.1:9", "-m", "hello"], "Is a model served there?"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
