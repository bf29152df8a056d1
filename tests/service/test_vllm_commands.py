import shutil
import subprocess
import tempfile
from pathlib import Path

import httpx
import pytest

from kvasir.hub.source import fetch
from service.running import process, running, spawn

ENVIRONMENT = {"KVASIR_PORT": "0", "KVASIR_DEVICE": "cpu", "KVASIR_THREADS": "1"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    shutil.copytree(fetch("demo://", weights=True), path / "gpt2")
    (path / "config.yaml").write_text(
        "model: gpt2\nhf_overrides: {max_position_embeddings: 1000}\nserved-model-name: [one, two]\n"
    )
    return path


@pytest.mark.parametrize(
    ("command", "model", "length"),
    [
        ("serve --model gpt2", "gpt2", 2048),
        (
            "serve gpt2 --tensor-parallel-size 1 --gpu-memory-utilization 0.8 --max-model-len 2k --max-num-seqs 8 "
            "--enable-prefix-caching",
            "gpt2",
            2000,
        ),
        (
            "serve gpt2 --tensor-parallel-size 2 --max_model_len 512 --dtype float --no-enable-prefix-caching",
            "gpt2",
            512,
        ),
        (
            "serve --config config.yaml -dp 2 -tp 1 --trust-remote-code --swap-space 4 -O3 --enforce-eager",
            "two",
            1000,
        ),
    ],
)
def test_a_command_line_of_vllm_serves_as_written(command: str, model: str, length: int, directory: Path) -> None:
    with running(*command.split(), env=ENVIRONMENT, cwd=directory) as service:
        body = {"model": model, "prompt": "Kvasir is", "max_tokens": 4, "temperature": 0}
        answer = httpx.post(f"{service.url}/v1/completions", json=body, timeout=60)
        models = httpx.get(f"{service.url}/v1/models").json()["data"]
        warnings = [line.split()[3] for line in service.text.splitlines() if "has no effect:" in line]
        share = "--gpu-memory-utilization has no effect on a CPU" in service.text
        eager = "--enforce-eager and --compilation-config have no effect on a CPU" in service.text
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"].startswith(" a serving system")
    assert (model, length) in [(each["id"], each["max_model_len"]) for each in models]
    assert share == ("0.8" in command)
    assert eager == ("--enforce-eager" in command)
    ignored = ["--trust-remote-code", "--swap-space", "--optimization-level"]
    assert warnings == (ignored if "-O3" in command else [])


def test_vllms_api_key_is_asked_for(directory: Path) -> None:
    environment = {**ENVIRONMENT, "VLLM_API_KEY": "secret", "VLLM_USE_V1": "1"}
    with running("serve", "gpt2", env=environment, cwd=directory) as service:
        url = f"{service.url}/v1/models"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"Authorization": "Bearer secret"}).status_code == 200
        assert "warning: VLLM_API_KEY is read as --api-key" in service.text
        assert "warning: VLLM_USE_V1 has no effect" in service.text


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("serve gpt2 --tensor-parallel-size 7 --kv-cache-memory-bytes 16Mi", "--tensor-parallel-size 7"),
        ("serve gpt2 --quantization awq", "--quantization awq: the weights of this checkpoint are not quantised"),
    ],
)
def test_what_cannot_be_served_ends_with_the_reason(command: str, message: str, directory: Path) -> None:
    ending = spawn(command.split(), ENVIRONMENT, directory)
    try:
        printed, _ = ending.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        ending.kill()
        raise
    assert ending.returncode != 0
    assert message in printed
    assert "Traceback" not in printed


def test_a_headless_serve_is_an_engine_for_a_frontend() -> None:
    with tempfile.TemporaryDirectory(prefix="kvs-", dir="/tmp") as short:
        link = f"ipc://{short}/link"
        frontend = ("frontend", "demo://", "--link", link, "--port", "0", "--shutdown-delay", "0")
        engine = ("serve", "demo://", "--headless", "--link", link, "--data-parallel-start-rank", "3")
        own = ("--device", "cpu", "--kv-cache-memory-bytes", "16Mi", "--ops-port", "0", "--api-key", "unused")
        with (
            process(*frontend, until=r"listening on (http://\S+)") as found,
            process(*engine, *own, until="Ready after"),
        ):
            ranks = [each["rank"] for each in httpx.get(f"{found[1]}/load").json()["engines"]]
    assert ranks == [3]
