import json
import signal
import subprocess
from pathlib import Path

import pytest

from runtime.batch.batch_lines import answers, line, write
from service.running import spawn

SECONDS = 120
CHAT = "/v1/chat/completions"


def command(folder: Path, *options: str) -> list[str]:
    return ["run-batch", "-i", str(folder / "in"), "-o", str(folder / "out"), "--model", "demo://", *options]


def ended(process: "subprocess.Popen[str]") -> str:
    """Return its output; a hang fails the test."""
    try:
        return process.communicate(timeout=SECONDS)[0]
    finally:
        process.kill()


def test_a_model_is_served_for_the_batch(tmp_path: Path) -> None:
    message = [{"role": "user", "content": "What is Kvasir?"}]
    write(
        tmp_path / "in",
        line("a", body={"prompt": "Kvasir is", "max_tokens": 4, "temperature": 0}),
        line("b", url=CHAT, body={"messages": message, "max_tokens": 4, "temperature": 0}),
        line("c", body={"prompt": "Kvasir is", "model": "other"}),
        line("d", url="/v1/nonsense"),
    )
    nowhere = dict.fromkeys(("http_proxy", "all_proxy"), "http://127.0.0.1:9")  # not for the loopback interface
    process = spawn(command(tmp_path, "--max-model-len", "512"), nowhere)
    printed = ended(process)
    assert process.returncode == 1, printed
    assert "line 4: '/v1/nonsense' is not an endpoint of this server" in printed
    assert "line 3: body.model is 'other', and this command serves 'demo://'" in printed
    assert "2 of 3 requests are answered" in printed
    result = answers(tmp_path / "out")
    assert {name: each["response"]["status_code"] for name, each in result.items()} == {
        "a": 200,
        "b": 200,
    }
    assert result["a"]["response"]["body"]["choices"][0]["text"] == " a serving system for"
    assert result["b"]["response"]["body"]["choices"][0]["message"]["content"].startswith("Kvasir")


def test_ctrl_c_ends_the_service_and_keeps_the_answers(tmp_path: Path) -> None:
    short = [line(f"s{i}", body={"prompt": "Kvasir is", "max_tokens": 1}) for i in range(3)]
    long: dict[str, object] = {"prompt": "x", "max_tokens": 1900, "n": 16, "ignore_eos": True}
    write(tmp_path / "in", *short, *(line(f"l{i}", body=long) for i in range(64)))
    process = spawn(command(tmp_path, "--concurrency", "2"))
    assert process.stdout is not None
    for text in process.stdout:
        if text.startswith("rank 0: Ready"):
            break
    process.send_signal(signal.SIGINT)
    printed = ended(process)
    assert process.returncode == 130, printed
    assert "requests are answered in" in printed
    assert "The same command sends the rest." in printed
    for each in (tmp_path / "out").read_text().splitlines():
        json.loads(each)


def test_a_setting_that_the_engine_refuses_ends_the_command(tmp_path: Path) -> None:
    write(tmp_path / "in", line("a"))
    process = spawn(command(tmp_path, "--kv-cache-memory-bytes", "1k"))
    printed = ended(process)
    assert process.returncode == 2, printed
    assert "its log:" in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("name", ["no-such-folder"])
def test_a_model_that_does_not_exist_is_one_line(tmp_path: Path, name: str) -> None:
    write(tmp_path / "in", line("a"))
    process = spawn([*command(tmp_path)[:-1], name])
    printed = ended(process)
    assert process.returncode == 2, printed
    assert name in printed
