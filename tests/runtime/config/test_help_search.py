import pytest

from kvasir.cli import main


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main.main([*argv])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("word", ["max-num-seqs", "max_num_seqs", "--max-num-seqs", "MAX-NUM-SEQS"])
def test_help_of_an_option_shows_it_alone(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "serve", f"--help={word}")
    assert text.startswith("scheduler:\n  --max-num-seqs N")
    assert text.count("--") == 1


def test_help_of_a_part_of_a_name_shows_all_options(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "serve", "demo://", "--help=parallel-size")
    assert all(option in text for option in ("--data-parallel-size", "--tensor-parallel-size"))
    assert "--max-num-seqs" not in text


@pytest.mark.parametrize("word", ["KV cache", "kv-cache"])
def test_help_of_a_group_shows_its_options(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "serve", f"--help={word}")
    assert text.startswith("KV cache:\n")
    assert "--block-size" in text
    assert "--max-num-seqs" not in text


def test_help_lists_groups_and_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert "  scheduler\n" in shown(capsys, "serve", "--help=listgroup")
    assert shown(capsys, "serve", "--help=all") == shown(capsys, "serve", "--help")


def test_help_of_a_sub_command_is_searched(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--request-rate" in shown(capsys, "bench", "serve", "--help=rate")
    assert "usage: kvasir chat" in shown(capsys, "--help=chat")


def test_help_of_an_unknown_word_names_a_close_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["serve", "--help=max-num-seq-s"])
    assert ended.value.code == 2
    assert "did you mean --help=max-num-seqs?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "llama"], "kvasir serve MODEL serves a model"),
        (["pull", "llama"], "kvasir fetch MODEL DIR"),
        (["ps"], "GET /health"),
        (["serve", "-hf", "org/name"], "give the model as hf://org/name"),
        (["serve", "demo"], "did you mean demo://?"),
    ],
)
def test_habits_of_other_tools_get_advice(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main.main(argv)
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2
    assert message in capsys.readouterr().err
