"""Mistakes of users and failures: each has a clear message, and nothing else is lost."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from service.running import ROOT, running, spawn


def test_a_killed_engine_is_reported_at_once_and_started_again() -> None:
    with running("up", "manifests/examples/demo.yaml", "--port", "0") as service:
        victim = service.engines()[0]
        expected = _answer(service.url)
        os.kill(victim.pid, signal.SIGKILL)
        killed = time.monotonic()
        while len([e for e in httpx.get(f"{service.url}/health").json()["engines"] if e["usable"]]) == 2:
            assert time.monotonic() - killed < 5, "the frontend did not notice"  # by its silence: after 10
        for _ in range(8):  # by the other rank
            assert _answer(service.url) == expected
        service.read_until(r"rank 0: Restarting: ended by signal 9 \(SIGKILL\), restart 1; next try in 1 s")
        service.read_until(r"rank 0: Ready")
        engines = httpx.get(f"{service.url}/health").json()["engines"]
        assert sorted(engine["rank"] for engine in engines if engine["usable"]) == [0, 1]
        for _ in range(8):
            assert _answer(service.url) == expected
        assert service.stop() == 0, service.text


def test_a_port_in_use_is_told_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for command in (
            ["up", "manifests/examples/demo.yaml", "--port", str(port)],
            ["serve", "demo://", "--port", str(port)],
            ["frontend", "demo://", "--port", str(port), "--link", "ipc:///tmp/kvasir-test-port"],
        ):
            code, printed = _run(command)
            assert code == 2
            assert str(port) in printed, printed
            assert "--port" in printed, printed


@pytest.mark.parametrize("command", ["serve", "engine"])
def test_a_missing_directory_is_one_line(command: str, tmp_path: Path) -> None:
    code, printed = _run([command, str(tmp_path / "nothing"), *_link(command, tmp_path)])
    assert code == 2
    assert str(tmp_path / "nothing") in printed


@pytest.mark.parametrize("command", ["serve", "engine"])
def test_a_corrupt_safetensors_file_is_named(command: str, tmp_path: Path) -> None:
    model = _copy_of_demo(tmp_path / "model")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    code, printed = _run([command, str(model), *_link(command, tmp_path)])
    assert code == 2
    assert "model.safetensors" in printed


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = _copy_of_demo(tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    name = next(name for name in tensors if "down_proj" in name)
    del tensors[name]
    save_file(tensors, model / "model.safetensors")
    code, printed = _run(["engine", str(model), *_link("engine", tmp_path)])
    assert code == 2
    assert name.removeprefix("model.") in printed, printed


def test_a_manifest_with_several_mistakes_lists_them_all(tmp_path: Path) -> None:
    manifest = tmp_path / "bad.yaml"
    text = (ROOT / "manifests/examples/demo.yaml").read_text()
    manifest.write_text(
        text.replace("dataParallelSize: 2", "dataParallelSze: 2\n    maxNumSeqs: 9\n    maxNumBatchedTokens: 8")
    )
    code, printed = _run(["up", str(manifest)])
    assert code == 2
    assert "dataParallelSze: unknown field; did you mean dataParallelSize?" in printed
    assert "maxNumBatchedTokens" in printed


def _answer(url: str) -> str:
    body = {"model": "demo", "messages": [{"role": "user", "content": "What is Kvasir?"}], "temperature": 0}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"])


def _run(command: list[str]) -> tuple[int, str]:
    process = spawn(command)
    try:
        printed, _ = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert "Traceback" not in printed, printed
    return process.returncode, printed


def _link(command: str, directory: Path) -> list[str]:
    return ["--link", f"ipc://{directory}/link", "--ops-port", "0"] if command == "engine" else ["--port", "0"]


def _copy_of_demo(target: Path) -> Path:
    target.mkdir()
    for file in (ROOT / "runtime/kvasir/hub/demo").iterdir():
        if file.is_file():
            (target / file.name).write_bytes(file.read_bytes())
    return target
