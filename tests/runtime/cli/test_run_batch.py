import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvasir.batch import delivery
from kvasir.cli import main, run_batch, serve
from runtime.batch.batch_lines import answers, line, write
from runtime.batch.batch_server import Answer, batch_server

PATIENCE = 60.0
"""Seconds until a test gives up on something that does not happen."""


def run(folder: Path, url: str, *options: str) -> int:
    files = ["-i", str(folder / "in"), "-o", str(folder / "out")]
    return main.main(["run-batch", *files, "--url", url, *options])


def numbered(count: int, first: int = 0) -> list[str]:
    return [line(f"r{i}", body={"prompt": str(i)}) for i in range(first, first + count)]


def test_every_request_is_answered_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in", *numbered(50))
    with batch_server() as server:
        assert run(tmp_path, server.url, "--concurrency", "8", "--api-key", "k") == 0
    result = answers(tmp_path / "out")
    assert {name: each["response"]["body"]["prompt"] for name, each in result.items()} == {
        f"r{i}": str(i) for i in range(50)
    }
    assert sorted(server.prompts) == sorted(map(str, range(50)))
    assert server.keys == {"Bearer k"}
    assert capfd.readouterr().out == f"50 of 50 requests are answered in {tmp_path}/out\n"


def test_no_more_requests_are_in_flight_than_asked_for(tmp_path: Path) -> None:
    full, live, most = threading.Barrier(4), 0, 0
    lock = threading.Lock()

    def answer(path: str, body: Any) -> Answer:
        nonlocal live, most
        with lock:
            live += 1
            most = max(most, live)
        full.wait(PATIENCE)  # until four are in flight
        with lock:
            live -= 1
        return 200, {}

    write(tmp_path / "in", *numbered(12))
    with batch_server(answer) as server:
        assert run(tmp_path, server.url, "--concurrency", "4") == 0
    assert most == 4


ERROR = {"error": {"message": "too\nlong"}}


def wrong_for(*prompts: str) -> Callable[[str, Any], Answer]:
    return lambda path, body: (400, ERROR) if body["prompt"] in prompts else (200, body)


def test_an_error_status_is_a_result_and_exit_code_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in", *numbered(3))
    with batch_server(wrong_for("1")) as server:
        assert run(tmp_path, server.url) == 1
        printed = capfd.readouterr()
        assert "3 of 3 requests are answered" in printed.out
        assert (
            "1 with an error status\nThe same command sends requests with an error status again.\n" in printed.out
        )
        assert printed.err == f"kvasir run-batch: {tmp_path}/in, line 2: 400: too long\n"
        assert answers(tmp_path / "out")["r1"]["response"]["body"] == ERROR
        assert run(tmp_path, server.url, "--no-retry-errors") == 1
        assert capfd.readouterr().out.endswith("already, 1 of them with an error status\n")
    assert len(server.prompts) == 3


def test_requests_with_an_error_status_are_sent_again(tmp_path: Path) -> None:
    write(tmp_path / "in", *numbered(4))
    with batch_server(wrong_for("1", "2")) as server:
        assert run(tmp_path, server.url) == 1
        server.prompts.clear()
        server.answer = wrong_for("2")
        assert run(tmp_path, server.url) == 1
        assert sorted(server.prompts) == ["1", "2"]
        assert answers(tmp_path / "out")["r2"]["response"]["status_code"] == 400
        server.answer = wrong_for()
        assert run(tmp_path, server.url) == 0
        assert sorted(server.prompts) == ["1", "2", "2"]
    assert {each["response"]["status_code"] for each in answers(tmp_path / "out").values()} == {200}


def test_an_unreachable_server_leaves_old_errors_in_the_output(tmp_path: Path) -> None:
    write(tmp_path / "in", *numbered(2))
    with batch_server(wrong_for("1")) as server:
        assert run(tmp_path, server.url) == 1
    before = (tmp_path / "out").read_bytes()
    assert run(tmp_path, "http://127.0.0.1:9") == 1
    assert (tmp_path / "out").read_bytes() == before


def test_errors_of_another_input_stay_in_the_output(tmp_path: Path) -> None:
    write(tmp_path / "in", *numbered(2))
    with batch_server(wrong_for("1")) as server:
        assert run(tmp_path, server.url) == 1
        write(tmp_path / "in", *numbered(1, first=5))
        assert run(tmp_path, server.url) == 0
    assert set(answers(tmp_path / "out")) == {"r0", "r1", "r5"}


def test_names_of_other_models_are_found_before_loading(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "check_model", lambda *_: pytest.fail("a model was loaded"))
    write(tmp_path / "in", *(line(f"r{i}", body={"prompt": "x", "model": "gpt-5 mini"}) for i in range(2)))
    files = ["-i", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    assert main.main(["run-batch", *files, "--model", "demo://"]) == 1
    error = "body.model is 'gpt-5 mini', and this command serves 'demo://': leave model out, or add "
    assert f"line 1: {error}--served-model-name 'gpt-5 mini'\n" in capfd.readouterr().err
    monkeypatch.setattr(run_batch, "_send", lambda args, batch: None)
    assert main.main(["run-batch", *files, "--model", "demo://", "--served-model-name", "a", "gpt-5 mini"]) == 0


def test_bad_lines_are_named_and_the_others_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in", line("a"), "{", line("a"), line("b", url="/v1/other"), line(...), line("c"))
    with batch_server() as server:
        server.described = {"paths": {"/v1/completions": {"post": {}}, "/v1/other": {"get": {}}}}
        assert run(tmp_path, server.url) == 1
        told = capfd.readouterr()
        assert set(answers(tmp_path / "out")) == {"a", "c"}
        named = [text.removeprefix(f"kvasir run-batch: {tmp_path}/in, line ") for text in told.err.splitlines()]
        assert [text[0] for text in named] == ["2", "3", "5", "4"]
        assert named[3] == "4: '/v1/other' is not an endpoint of this server: use /v1/completions"
        assert told.out.endswith("Correct the lines that are not requests; the same command sends the rest.\n")
        write(tmp_path / "in", line("a"), line("x"), line("y"), line("b"), line("z"), line("c"))
        assert run(tmp_path, server.url) == 0
    assert set(answers(tmp_path / "out")) == {*"abcxyz"}
    assert len(server.prompts) == 6


def test_a_wrong_file_does_not_fill_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in", *["nonsense"] * 1000)
    with batch_server() as server:
        assert run(tmp_path, server.url) == 1
    assert capfd.readouterr().err.count("\n") == 101
    assert server.prompts == []


def test_a_busy_server_leaves_its_lines_for_the_next_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "FIRST_PAUSE", 0.0)
    write(tmp_path / "in", *numbered(3))
    busy = {"error": {"message": "no room"}}
    with batch_server(lambda path, body: (429, busy) if body["prompt"] == "1" else (200, body)) as server:
        assert run(tmp_path, server.url, "--retry-for", "50ms") == 1
        told = capfd.readouterr()
        assert "line 2: not answered: 429: no room" in told.err
        assert told.out.endswith("out, 1 not answered\nThe same command sends the rest.\n")
        server.answer = lambda path, body: (200, body)
        server.prompts.clear()
        assert run(tmp_path, server.url) == 0
        assert server.prompts == ["1"]
    assert len(answers(tmp_path / "out")) == 3


def test_a_server_that_is_gone_ends_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in", *numbered(500))

    with batch_server(lambda path, body: (200, body) if int(body["prompt"]) < 100 else None) as server:
        assert run(tmp_path, server.url, "--concurrency", "1", "--retry-for", "0") == 1
    told = capfd.readouterr()
    assert "the server does not answer any more" in told.err
    assert told.err.count("\n") == 1
    assert f"of 500 requests are answered in {tmp_path}/out" in told.out
    assert len(answers(tmp_path / "out")) == 100


def test_a_refused_key_is_no_answer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in", *numbered(20))
    with batch_server(lambda path, body: (401, {"error": {"message": "wrong"}})) as server:
        assert run(tmp_path, server.url) == 2
    assert "the server refuses the API key (401: wrong): give another --api-key" in capfd.readouterr().err
    assert answers(tmp_path / "out") == {}


def test_ctrl_c_keeps_the_answers_for_the_next_run(tmp_path: Path) -> None:
    write(tmp_path / "in", *numbered(5))
    held, release = threading.Semaphore(0), threading.Event()

    def answer(path: str, body: Any) -> Answer:
        if body["prompt"] in "34":
            held.release()
            release.wait(PATIENCE)
        return 200, body

    with batch_server(answer) as server:
        command = [sys.executable, "-m", "kvasir.cli.main", "run-batch", "--url", server.url, "--concurrency", "2"]
        process = subprocess.Popen(
            [*command, "-i", str(tmp_path / "in"), "-o", str(tmp_path / "out")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert held.acquire(timeout=PATIENCE)
            assert held.acquire(timeout=PATIENCE)  # of two in flight both are held, so the first three are done
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
            release.set()
        assert (process.returncode, err) == (130, "")
        assert out.splitlines() == [
            f"3 of 5 requests are answered in {tmp_path}/out",
            "The same command sends the rest.",
        ]
        server.prompts.clear()
        with (tmp_path / "out").open("a") as file:
            file.write('{"id": "batch_req_1", "custom_id": "r3", "respo')  # as if it was killed
        assert run(tmp_path, server.url) == 0
        assert sorted(server.prompts) == ["3", "4"]
    assert len(answers(tmp_path / "out")) == 5


def test_a_file_without_one_good_line_needs_no_server(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").write_text("hello\n")
    assert run(tmp_path, "http://127.0.0.1:9") == 1
    printed = capfd.readouterr()
    assert "line 1: not JSON" in printed.err
    assert printed.out == f"no line of {tmp_path}/in is a request: correct the lines and start the command again\n"


def test_a_finished_batch_needs_no_server(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in", *numbered(2))
    with batch_server() as server:
        assert run(tmp_path, server.url) == 0
    assert run(tmp_path, "http://127.0.0.1:9") == 0
    assert capfd.readouterr().out.endswith(f"all 2 requests have an answer in {tmp_path}/out already\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give either --model, to serve a model for this batch, or --url"),
        (["--url", "127.0.0.1:9", "--model", "demo://"], "give either --model"),
        (["--url", "127.0.0.1:9", "--max-model-len", "64"], "--max-model-len is for a service that this command"),
        (["--url", "ftp://x"], "is not the URL of a server"),
        (["--url", "127.0.0.1:9", "--concurrency", "0"], "--concurrency: 0 is out of range"),
        (["--url", "127.0.0.1:9", "-i", "FOLDER/none"], "cannot read FOLDER/none: No such file or directory"),
        (["--url", "127.0.0.1:9", "-i", "FOLDER/empty"], "FOLDER/empty holds no requests"),
        (["--url", "127.0.0.1:9", "-o", "FOLDER/in"], "are the same file"),
        (["--model", "no-such-model"], "no-such-model"),
    ],
)
def test_mistakes_are_found_before_anything_is_sent(
    options: Sequence[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "in", *numbered(1))
    (tmp_path / "empty").touch()
    argv = ["run-batch", "-i", "FOLDER/in", "-o", "FOLDER/out", *options]
    try:
        code = main.main([each.replace("FOLDER", str(tmp_path)) for each in argv])
    except SystemExit as end:  # argparse's way
        code = int(str(end.code))
    told = capfd.readouterr().err
    assert code == 2
    assert message.replace("FOLDER", str(tmp_path)) in told
    assert not (tmp_path / "out").exists() or os.path.getsize(tmp_path / "out") == 0


def test_an_unreachable_server_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in", *numbered(1))
    assert run(tmp_path, "http://127.0.0.1:9") == 1
    assert "no answer from http://127.0.0.1:9" in capfd.readouterr().err
