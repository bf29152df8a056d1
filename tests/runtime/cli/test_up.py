"""`kvasir up`: mistakes are reported before any process starts; the processes match the manifest."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvasir.cli import main, up
from kvasir.local import prepare
from kvasir.local.place import open_place
from kvasir.local.run import LocalService

DEMO = Path(__file__).parents[3] / "manifests" / "examples" / "demo.yaml"


@pytest.fixture(autouse=True)
def _state_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_variables_of_vllm_are_named(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "k")
    run_without_starting(monkeypatch, str(DEMO), "--port", "0")
    assert capfd.readouterr().err == ("kvasir up: warning: no effect: VLLM_API_KEY; give options in the manifest\n")


def run_without_starting(monkeypatch: pytest.MonkeyPatch, *argv: str) -> list[LocalService]:
    """What would be run."""
    seen: list[LocalService] = []

    def keep(services: Sequence[LocalService]) -> None:
        seen.extend(services)

    monkeypatch.setattr(up, "run_services", keep)
    assert main.main(["up", *argv]) == 0
    return seen


def test_the_demo_has_a_frontend_and_two_ranks_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    (demo,) = run_without_starting(monkeypatch, str(DEMO), "--port", "0")
    assert [spec.name for spec in demo.processes] == ["frontend-0", "engine-0", "engine-1"]
    assert demo.served_name == "demo"
    assert demo.chats


def test_a_service_with_a_certificate_is_shown_with_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "service.yaml"
    extra = "spec:\n  frontend: {extraArgs: [--ssl-certfile=tls.pem]}"
    path.write_text(DEMO.read_text().replace("spec:", extra))
    (service,) = run_without_starting(monkeypatch, str(path), "--port", "0")
    assert service.https


def test_private_directories_are_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    (demo,) = run_without_starting(monkeypatch, str(DEMO), "--port", "0")
    assert not demo.place.directory.exists()
    assert demo.place.listener.fileno() == -1


def test_services_of_one_manifest_take_consecutive_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def open_any_port(*args: Any, port: int, **rest: Any) -> Any:
        opened.append(port)
        return open_place(*args, port=0, **rest)

    monkeypatch.setattr(prepare, "open_place", open_any_port)
    text = DEMO.read_text()
    path = tmp_path / "two.yaml"
    path.write_text(f"{text}---\n{text.replace('name: demo', 'name: other')}")
    services = run_without_starting(monkeypatch, str(path), "--port", "18000")
    assert opened == [18000, 18001]
    assert [service.place.service for service in services] == ["demo", "other"]


def test_services_without_a_port_left_for_each_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = DEMO.read_text()
    path = tmp_path / "two.yaml"
    path.write_text(f"{text}---\n{text.replace('name: demo', 'name: other')}")
    assert main.main(["up", str(path), "--port", "65535"]) == 2
    assert "--port 65535: 2 services take the ports up to 65536" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'resourceName: ""',
            "resourceName: nvidia.com/gpu",
            "there is no GPU here, and 2 engines need one each: set",
        ),
        ('resourceName: ""', "resourceName: amd.com/gpu", "without a cluster only nvidia.com/gpu can be found"),
        ("source: demo://", "source: file:///no/such/model", "/no/such/model does not exist"),
        ("memory: 64Mi", "memory: -1", "spec.engine.kvCache.memory: -1 is too small: at least 1"),
        ("source: demo://", "sauce: demo://", "spec.model.sauce: unknown field; did you mean source?"),
        ("spec:", "spec:\n  frontend: {apiKeys: {name: keys}}", "InferenceService demo: Secret keys"),
    ],
)
def test_mistakes_are_told_without_a_traceback(
    old: str,
    new: str,
    message: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(up, "run_services", lambda services: pytest.fail("it was started"))
    path = tmp_path / "service.yaml"
    path.write_text(DEMO.read_text().replace(old, new))
    assert main.main(["up", str(path), "--port", "0"]) == 2
    error = capfd.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_port_in_use_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    place = open_place("x", host="127.0.0.1", port=0, frontends=1, engines=1)
    try:
        port = place.listener.getsockname()[1]
        assert main.main(["up", str(DEMO), "--port", str(port)]) == 2
        assert f"cannot listen on 127.0.0.1:{port}: address already in use" in capfd.readouterr().err
    finally:
        place.close()


def test_fields_without_effect_here_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(DEMO.read_text().replace("spec:", "spec:\n  image: x"))
    run_without_starting(monkeypatch, str(path), "--port", "0")
    assert "without a cluster these have no effect: spec.image" in capfd.readouterr().out


async def chat(url: str) -> str:
    body = {"model": "demo", "messages": [{"role": "user", "content": "What is Kvasir?"}], "temperature": 0}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        answer = await http.post(f"{url}/v1/chat/completions", json=body)
    return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])


def processes_below(pid: int) -> dict[int, str]:
    """Command lines of the children, by process id."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child): Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ") for child in children}


def still_there(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def test_the_demo_answers_survives_a_killed_engine_and_leaves_nothing() -> None:
    up = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvasir.cli.main", "up", str(DEMO), "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert up.stdout is not None
    told: list[str] = []

    async def until(pattern: str) -> re.Match[str]:
        assert up.stdout is not None
        async with asyncio.timeout(120):
            while line := (await up.stdout.readline()).decode():
                told.append(line)
                if match := re.search(pattern, line):
                    return match
        raise AssertionError("".join(told))

    try:
        url = (await until(r"demo is served at (http://127.0.0.1:\d+)/v1"))[1]
        first = await chat(url)
        assert first
        children = processes_below(up.pid)
        assert len(children) == 3
        os.kill(next(pid for pid, command in children.items() if "engine" in command), signal.SIGKILL)
        await until(r"rank \d: Restarting: ended by SIGKILL; next try in 1 s")
        assert await chat(url) == first, "the other engine serves"
        await until(r"rank \d: Ready")
        assert await chat(url) == first
        children |= processes_below(up.pid)
        up.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            assert await up.wait() == 0
        assert not still_there(children)
    finally:
        if up.returncode is None:
            up.kill()
        await up.communicate()
