import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvasir.cli import main
from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.options import ConfigError
from kvasir.executor.executor_for import executor_for
from kvasir.executor.torchrun.launched_rank import LaunchedRank, shows_results
from kvasir.hub.model_info import load_model_info
from kvasir.models.model_load_error import ModelLoadError
from kvasir.parallel.gloo import BACKEND
from runtime.executor import launched_script
from runtime.models.tiny import llama, save
from runtime.worker.driver import engine_settings

SCRIPT = launched_script.__file__
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
WAIT = 120.0
TWO = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
PLACE = LaunchedRank(rank=1, size=2, local_size=2, address="localhost:29500")
LAUNCHED = ExecutorConfig(tensor_parallel_size=2, distributed_executor_backend="external_launcher")


def run(scenario: str, folder: Path) -> list[dict[str, Any]]:
    """Run the script under torchrun; return the result of each rank."""
    done = subprocess.run(
        [sys.executable, *TORCHRUN, SCRIPT, scenario, folder], timeout=WAIT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def start(scenario: str, folder: Path) -> list["subprocess.Popen[bytes]"]:
    """Start two processes without an agent, which would end both if one fails."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return [
        subprocess.Popen(
            [sys.executable, SCRIPT, scenario, folder],
            stdin=subprocess.PIPE,
            env=os.environ | TWO | {"RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        )
        for rank in range(2)
    ]


def test_launched_engines_answer_as_one_process(tmp_path: Path) -> None:
    first, second = run("answers", tmp_path)
    assert first == second
    alone = launched_script.answers(workers=1)
    assert {name: found[:2] for name, found in first.items()} == {name: found[:2] for name, found in alone.items()}
    assert alone["constrained tokens"][:2] == alone["constrained asynchronous"][:2] != alone["tokens"][:2]
    drawn = [first[name][2] for name in ("tokens", "asynchronous")]
    assert drawn[0] != drawn[1] != alone["tokens"][2]  # from random seeds


def test_differences_between_the_ranks_are_named(tmp_path: Path) -> None:
    first, second = run("mistakes", tmp_path)
    for rank, found in enumerate((first, second)):
        assert (
            f"block_size differs between rank 0 and rank 1 (on rank {rank} it is {16 << rank})" in found["settings"]
        )
        assert found["blocks"] == 40
        assert found["backend"] == BACKEND, "its thread sleeps while nothing is exchanged"
        assert "the processes are at different steps (here step 1): give each the same requests" in found["prompts"]
        assert found["after"] == "RuntimeError: a step of this LLM has failed: create a new one"


def test_a_killed_rank_ends_the_others(tmp_path: Path) -> None:
    ranks = start("kill", tmp_path)
    codes = [rank.wait(WAIT) for rank in ranks]
    assert codes == [0, -9]
    assert "FailureError: rank 0: a step failed: " in json.loads((tmp_path / "0.json").read_text())["error"]


def test_a_rank_that_cannot_load_ends_the_wait_of_the_others(tmp_path: Path) -> None:
    other, failing = start("fail_to_load", tmp_path)
    try:
        assert other.wait(WAIT) == 0
        assert failing.poll() is None
        error = json.loads((tmp_path / "0.json").read_text())["error"]
        assert error == "FailureError: rank 0: rank 1 could not load the model: its output has the reason"
        failing.communicate(b"\n", timeout=WAIT)
        assert json.loads((tmp_path / "1.json").read_text()) == {"error": "RuntimeError: a broken file"}
    finally:
        for each in (other, failing):
            each.kill()
            each.wait()


def test_an_interrupt_of_one_rank_never_mixes_requests(tmp_path: Path) -> None:
    ranks = start("interrupt", tmp_path)
    assert [rank.wait(WAIT) for rank in ranks] == [0, 0]
    left, interrupted = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert interrupted["first"] == "interrupted"
    assert interrupted["second"]
    assert "different steps" in left["first"]
    assert left["second"] == "RuntimeError: a step of this LLM has failed: create a new one"


def test_only_rank_0_prints_the_figures_of_a_benchmark() -> None:
    options = ("--kv-cache-memory-bytes", "8Mi", "--input-len", "9", "--output-len", "4")
    bench = ("kvasir.cli.main", "bench", "throughput", "demo://", "--requests", "3", *options)
    done = subprocess.run(
        [
            sys.executable,
            *TORCHRUN,
            "-m",
            *bench,
            "-tp",
            "2",
            "--distributed-executor-backend",
            "external_launcher",
        ],
        timeout=WAIT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("requests   3 in") == 1


def test_the_place_of_a_process_is_read_from_torchruns_variables() -> None:
    assert LaunchedRank.of(LAUNCHED, TWO) == PLACE
    without = {name: value for name, value in TWO.items() if name != "LOCAL_WORLD_SIZE"}
    assert LaunchedRank.of(LAUNCHED, without) == PLACE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": ""}, "RANK is not set; start the processes with torchrun --nproc-per-node 2"),
        ({"MASTER_PORT": ""}, "MASTER_PORT is not set"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE is 4 and --tensor-parallel-size is 2: .* give --tensor-parallel-size 4"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE=two is not a number"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT=http is not a number"),
        ({"RANK": "2"}, "RANK is 2 and WORLD_SIZE is 2: ranks are 0 to 1"),
    ],
)
def test_an_environment_that_is_not_torchruns_is_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LaunchedRank.of(LAUNCHED, TWO | changes)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_without_the_others_names_the_place(
    rank: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name, value in (TWO | {"RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    argv = ["bench", "latency", "demo://", "-tp", "2", "--distributed-executor-backend", "external_launcher"]
    assert main.main([*argv, "--worker-timeout", "1s"]) == 1
    message = f"rank {rank} could not connect to the other processes at 127.0.0.1:{port} within 1 s"
    assert message in capfd.readouterr().err


def test_unsplittable_model_is_rejected_before_ranks_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (TWO | {"WORLD_SIZE": "3"}).items():
        monkeypatch.setenv(name, value)
    settings = engine_settings(executor=dataclasses.replace(LAUNCHED, tensor_parallel_size=3))
    executor = executor_for(settings, load_model_info(save(llama(), tmp_path)))
    with pytest.raises(ModelLoadError, match="--tensor-parallel-size 3 does not divide num_attention_heads"):
        executor.start(lambda done, total: None, failed=lambda error: None)
    executor.shutdown()


def test_a_pipeline_is_refused() -> None:
    with pytest.raises(ConfigError, match="external_launcher has no pipelines, because"):
        ExecutorConfig(pipeline_parallel_size=2, distributed_executor_backend="external_launcher")


def test_only_rank_0_shows_results(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TWO.items():
        monkeypatch.setenv(name, value)
    assert not shows_results(LAUNCHED)
    assert shows_results(ExecutorConfig())
    monkeypatch.setenv("RANK", "0")
    assert shows_results(LAUNCHED)


@pytest.mark.parametrize(
    "argv",
    [
        ["serve", "demo://"],
        ["engine", "demo://", "--link", "ipc:///nowhere"],
        ["bench", "startup", "demo://"],
    ],
)
def test_a_service_with_launched_engines_is_refused(argv: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main([*argv, "--distributed-executor-backend", "external_launcher"]) == 2
    assert (
        "external_launcher is for kvasir bench throughput, kvasir bench latency and kvasir.LLM"
        in capfd.readouterr().err
    )


def test_a_benchmark_without_torchrun_names_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "latency", "/no/model", "-tp", "2", "--distributed-executor-backend", "external_launcher"]
    assert main.main(argv) == 2
    assert "start the processes with torchrun --nproc-per-node 2 -m kvasir.cli.main bench" in capfd.readouterr().err
