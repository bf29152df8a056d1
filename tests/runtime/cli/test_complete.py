import io
import json
from collections.abc import Iterator

import pytest

from kvasir.cli import main
from runtime.cli.fake_server import FakeServer, fake_server, sse, text_chunk

PATH = "/v1/completions"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server({PATH: (200, sse(text_chunk(" a"), text_chunk(" river.")))}) as server:
        yield server


def test_the_continuation_is_printed_as_it_streams(server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["complete", server.address, "Kvasir is", "--temperature", "0", "--top-p", "0.5", "--max-tokens", "9"]
    assert main.main([*argv, "--stop", "x", "--stop", "y", "--seed", "-1"]) == 0
    assert capfd.readouterr().out == " a river.\n"
    expected = {"model": "m", "prompt": "Kvasir is", "temperature": 0.0, "top_p": 0.5, "max_tokens": 9}
    assert server.bodies == [{**expected, "stop": ["x", "y"], "seed": -1, "stream": True}]


def test_a_prompt_on_stdin_loses_one_line_break(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n\n"))
    assert main.main(["complete", server.address]) == 0
    assert server.bodies[0]["prompt"] == "one\ntwo\n"


@pytest.mark.parametrize("name", ["demo", "demo://", "org/name", "hf://org/name@main"])
def test_a_target_that_is_no_address_is_the_name_of_a_model(
    name: str, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVASIR_URL", f"http://{server.address}")
    assert main.main(["complete", name, "x"]) == 0
    assert server.bodies[0]["model"] == name


def test_further_continuations_follow_the_first(server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    chunks = (text_chunk("b", 1), text_chunk("a"), text_chunk("B\n", 1), text_chunk("A"))
    server.answers[PATH] = (200, sse(*chunks))
    assert main.main(["complete", server.address, "x", "-n", "2"]) == 0
    assert server.bodies[0]["n"] == 2
    assert capfd.readouterr().out == "aA\n---\nbB\n"


def test_json_prints_the_whole_answer(server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    answer = {"id": "1", "choices": [{"index": 0, "text": "ö"}], "usage": {"completion_tokens": 1}}
    server.answers[PATH] = (200, json.dumps(answer).encode())
    assert main.main(["complete", server.address, "x", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == answer
    assert "stream" not in server.bodies[0]


def test_an_answer_that_is_no_json_is_one_line(server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.answers[PATH] = (200, b"<html>\nlog in first</html>")
    assert main.main(["complete", server.address, "x", "--json"]) == 1
    told = capfd.readouterr().err
    assert told == (
        "kvasir complete: the server does not answer like an OpenAI server: '<html> log in first</html>'\n"
    )


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
@pytest.mark.parametrize("command", ["complete", "chat"])
def test_input_that_is_not_utf_8_is_one_line(
    command: str,
    errors: str,
    server: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8", errors=errors)
    monkeypatch.setattr("sys.stdin", stdin)
    assert main.main([command, server.address]) == 2
    told = capfd.readouterr().err
    assert told.startswith(f"kvasir {command}: standard input is not UTF-8")
    assert told.count("\n") == 1
    assert server.bodies == []


ERROR = b'{"error": {"message": "top_p must be at most 1"}}'


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        ((400, ERROR), 2, "400: top_p must be at most 1"),
        ((404, ERROR), 2, "404: top_p must be at most 1"),
        ((429, ERROR), 1, "429: top_p must be at most 1"),
        ((503, b"busy"), 1, "503: busy"),
        ((200, sse(text_chunk("a"), {"error": {"message": "engine lost"}})), 1, "engine lost"),
        ((200, sse(text_chunk("a")) + b"data: <html>\n\n"), 0, ""),
        (
            (200, sse(text_chunk("a"), done=False) + b"data: <html>\n\n"),
            1,
            "does not answer like an OpenAI server",
        ),
        ((200, sse(text_chunk("a"), done=False) + b"data: []\n\n"), 1, "does not answer like an OpenAI server"),
        ((200, sse(text_chunk("a"), {"text": "b"})), 1, "does not answer like an OpenAI server"),
        ((200, sse(text_chunk("a"), text_chunk("b", 7))), 1, "does not answer like an OpenAI server"),
        ((200, sse(text_chunk("a"), {"error": "engine lost"})), 1, "engine lost"),
        ((200, sse(text_chunk("a"), done=False)), 1, "closed the stream before the answer was complete"),
    ],
)
def test_the_exit_code_tells_whose_mistake_it_was(
    answer: tuple[int, bytes], code: int, message: str, server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    server.answers[PATH] = answer
    assert main.main(["complete", server.address, "x"]) == code
    captured = capfd.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ("a\n" if answer[0] == 200 else "")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["demo", "x", "--model", "other"], "give one model, or a URL and --model"),
        (["127.0.0.1:9", ""], "the prompt is empty"),
        (["127.0.0.1:9", "x", "--temperature", "nan"], "--temperature: nan is out of range: give at least 0"),
        (["127.0.0.1:9", "x", "--top-p", "inf"], "--top-p: inf is out of range: give at least 0"),
        (["127.0.0.1:9", "caf\udce9"], "prompt is not UTF-8"),
        (["127.0.0.1:9", "x", "--stop", "y", "--stop", "caf\udce9"], "stop is not UTF-8"),
        (["127.0.0.1:9", "x", "--api-key", "caf\udce9"], "api-key is not UTF-8"),
        (["127.0.0.1:9", "x", "--max-tokens", "0"], "--max-tokens: 0 is out of range: give at least 1"),
    ],
)
def test_mistakes_are_told_before_anything_is_asked(
    argv: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main.main(["complete", *argv])
    except SystemExit as end:  # argparse's way
        code = int(str(end.code))
    assert code == 2
    assert message in capfd.readouterr().err
