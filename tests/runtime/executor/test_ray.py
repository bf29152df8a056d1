"""Workers that a local Ray starts. Skipped without Ray: `make test-ray` installs it and runs these tests."""

import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest

from kvasir import LLM, SamplingParams
from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.options import ConfigError
from kvasir.executor.executor_for import executor_for
from kvasir.hub.model_info import load_model_info
from runtime.executor import ray_nodes_script, ray_script
from runtime.executor.processes import is_alive, named, seconds_until_gone
from runtime.models.tiny import llama, save
from runtime.worker.driver import engine_settings
from service.running import running

FOLDER = Path(__file__).parent
WAIT = 180.0
MAX_SECONDS = 20.0
CPUS = "2"
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: `make test-ray` installs it"
)


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with local_ray() as variables:
        yield variables


@contextmanager
def local_ray(nodes: int = 1, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[dict[str, str]]:
    """Start a Ray of these tests; yield the variables of its users."""
    folder = tempfile.mkdtemp(prefix="kvasir-ray-", dir="/tmp")  # the paths of its sockets must be short
    variables = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # other tests may need the memory
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # else Ray writes one into the home directory
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),  # the scripts import from the tests
    }
    head = subprocess.Popen(
        [sys.executable, FOLDER / "ray_head.py", folder, CPUS, str(nodes)],
        env={**os.environ, **variables, **settings},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert head.stdout is not None
        yield variables | {"RAY_ADDRESS": head.stdout.readline().strip()}
    finally:
        head.communicate(timeout=WAIT)
        shutil.rmtree(folder)


def run(scenario: str, environment: dict[str, str], folder: Path, code: int = 0) -> dict[str, Any]:
    file = folder / "result.json"
    command = [sys.executable, str(FOLDER / "ray_script.py"), scenario, str(file)]
    done = subprocess.run(command, env=os.environ | environment, timeout=WAIT, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    result: dict[str, Any] = json.loads(file.read_text())
    return result


@needs_ray
def test_workers_of_ray_answer_as_one_process(environment: dict[str, str], tmp_path: Path) -> None:
    found = run("answers", environment, tmp_path)
    with ray_script.make() as llm:
        expected = [ray_script.tokens(llm, ray_script.PROMPTS, fields) for fields in ray_script.SAMPLED]
    assert found["tokens"] == expected
    assert found["again"] == expected[0]
    assert found["workers"] == 2
    assert "worker 1 is in phase idle" in found["where"]
    assert "worker_process.py" in found["where"]
    assert found["same handler"]


@needs_ray
def test_a_killed_worker_of_ray_ends_all_at_once(environment: dict[str, str], tmp_path: Path) -> None:
    found = run("kill", environment, tmp_path)
    assert found["error"].startswith("worker 1 ended (Ray: ")
    assert "in phase idle" in found["error"]
    assert found["seconds"] < 1.0


@needs_ray
def test_a_frozen_worker_of_ray_is_named_by_the_step(environment: dict[str, str], tmp_path: Path) -> None:
    error = run("frozen", environment, tmp_path)["error"]
    assert error.startswith("no reply to a step within 2 s: worker 0 is in phase prefill of step")
    assert "worker 1 is stopped in phase idle" in error


@needs_ray
def test_what_ray_cannot_place_is_refused_by_name(environment: dict[str, str], tmp_path: Path) -> None:
    found = run("refused", environment, tmp_path)
    assert "Ray had no room for 4 workers on the engine's node with 1 free CPUs each within 2 s" in found["cpus"]
    assert "--kv-cache-memory-bytes" in found["memory"]


@needs_ray
def test_a_worker_that_rays_memory_monitor_killed_is_named(tmp_path: Path) -> None:
    limits = {"RAY_memory_usage_threshold": "0.01", "RAY_memory_monitor_refresh_ms": "100"}
    with local_ray(settings=limits) as environment:
        found = run("watched", environment, tmp_path)
    assert "due to the node running low on memory" in found["error"]
    assert found["reason"] == "OutOfMemory"


@needs_ray
def test_workers_of_ray_end_with_a_killed_engine(environment: dict[str, str], tmp_path: Path) -> None:
    found = run("die", environment, tmp_path, code=-signal.SIGKILL)
    seconds_until_gone(found["pids"], MAX_SECONDS)


@needs_ray
def test_ray_places_the_nodes_of_an_engine(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    command = [sys.executable, str(FOLDER / "ray_nodes_script.py"), str(file)]
    with local_ray(nodes=2) as environment:
        done = subprocess.run(command, env=os.environ | environment, timeout=WAIT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    params = SamplingParams(temperature=0, max_tokens=ray_nodes_script.MAX_TOKENS, ignore_eos=True)
    with LLM("demo://", dtype="float32", kv_cache_memory_bytes="64Mi") as llm:
        [expected] = llm.generate({"prompt_token_ids": ray_nodes_script.PROMPT}, params)
    assert found["tokens"] == expected.outputs[0].token_ids
    assert found["workers"] == 1
    assert "node 1" in found["error"]
    assert "node 1 ended (Ray: " in done.stderr


@needs_ray
def test_a_service_with_workers_of_ray_drains_and_ends(environment: dict[str, str]) -> None:
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=30, ignore_eos=True)
    with LLM("demo://", dtype="float32", kv_cache_memory_bytes="64Mi") as llm:
        [expected] = [output.outputs[0].text for output in llm.generate("Kvasir is", params)]
    options = ("--dtype", "float32", "--kv-cache-memory-bytes", "64Mi", "--device", "cpu", "--port", "0")
    ray = ("-tp", "2", "--threads", "2", "--distributed-executor-backend", "ray")
    with running("serve", "demo://", *ray, *options, env=os.environ | environment) as service:
        fields = {"prompt": "Kvasir is", "temperature": 1.0, "seed": 4, "max_tokens": 30, "ignore_eos": True}
        answer = httpx.post(f"{service.url}/v1/completions", json=fields, timeout=60)
        assert answer.raise_for_status().json()["choices"][0]["text"] == expected
        pids = named("ray::RayWorkerActor")
        assert len(pids) == 2
        assert all(map(is_alive, pids))
    seconds_until_gone(pids, MAX_SECONDS)
    assert "rank 0: Stopped" in service.text


@needs_ray
def test_an_engine_without_a_ray_names_the_command(tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [
        sys.executable,
        "-m",
        "kvasir.cli.main",
        "bench",
        "latency",
        "demo://",
        "--kv-cache-memory-bytes",
        "8Mi",
    ]
    done = subprocess.run(
        [*command, "--distributed-executor-backend", "ray"],
        env=variables,
        timeout=WAIT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "start one with `ray start --head`, or name it in RAY_ADDRESS" in done.stderr


def test_a_missing_ray_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "kvasir.executor.ray_workers.placement", raising=False)
    model = load_model_info(save(llama(), tmp_path))
    settings = engine_settings(executor=ExecutorConfig(distributed_executor_backend="ray"))
    with pytest.raises(ConfigError, match=r"pip install 'kvasir-serve\[ray\]'"):
        executor_for(settings, model)
