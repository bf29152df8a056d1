"""The real engine process on demo://, against a real FrontendLink in the test."""

import asyncio
import ctypes
import http.client
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from kvasir.engine.drain import DRAIN_SETTLE_SECONDS
from kvasir.engine.scheduling.token_budget import REQUEST_TOKENS
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine
from kvasir.link.protocol import Call, FailedStep, FinishReason, Progress, Ready, RefusalKind
from kvasir.request.adapter import Adapter
from kvasir.request.hashing import request_digest
from kvasir.request.request_core import RequestCore
from kvasir.request.tokens import packed
from kvasir_contract.exits import ExitCode
from kvasir_contract.failure import Failure, find_failure
from kvasir_contract.reasons import Reason
from runtime.engine.engine_under_test import PROMPT, WAIT, Frontend, ended, params, run_engine
from runtime.hub.silent_hub import silent_hub

REAL = (sys.executable, "-m", "kvasir.cli.main", "engine")
FAKE = (sys.executable, str(Path(__file__).with_name("engine_with_fake_executor.py")))


def capacity_of(engine: RemoteEngine) -> Ready:
    assert engine.capacity is not None
    return engine.capacity


def names(step: FailedStep | None) -> list[str]:
    assert step is not None
    return [request.request_id for request in step.requests]


def title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0")


async def log_line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stderr is not None
    return await process.stderr.readline()


async def ops_port(process: asyncio.subprocess.Process) -> int:
    line = await log_line(process)
    found = re.search(rb"http://127.0.0.1:(\d+)", line)
    assert found, line
    return int(found[1])


def page(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read().decode()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_an_engine_starts_serves_idles_and_drains(frontend: Frontend, address: str) -> None:
    options = ("--data-parallel-rank", "1", "--kv-cache-memory-bytes", "16Mi")  # a large one is still being taken
    async with run_engine(*REAL, "demo://", "--link", address, *options) as process:
        port = await ops_port(process)
        assert page(port, "/health/live")[0] == 200
        assert page(port, "/health/ready")[0] == 503
        engine = await frontend.ready()
        assert list(dict.fromkeys(frontend.states)) == [
            EngineState.STARTING,
            EngineState.LOADING,
            EngineState.WARMING,
            EngineState.READY,
        ]
        assert page(port, "/health/ready")[0] == 200
        assert title(process.pid) == "kvasir: engine rank 1"

        frontend.ask(engine, "first", 8)
        last = await frontend.answer("first")
        assert last.finish_reason is FinishReason.LENGTH
        tokens = [token for output in frontend.received("first") for token in output.token_ids]
        assert len(tokens) == 8

        before = cpu_seconds(process.pid)
        await asyncio.sleep(1)
        assert cpu_seconds(process.pid) - before <= 0.05
        _, metrics = page(port, "/metrics")
        assert 'vllm:generation_tokens_total{engine="1",model_name="demo://"} 8.0' in metrics
        assert 'kvasir:engine_startup_seconds{engine="1",model_name="demo://",phase="Loading"}' in metrics
        status = json.loads(page(port, "/status")[1])
        assert status["incarnation"] == engine.incarnation
        assert list(status["startup_seconds"]) == ["Launching", "Starting", "Loading", "Warming"]
        assert status["step"] is None

        frontend.ask(engine, "second", 150)
        await frontend.until(lambda: len(frontend.received("second")) > 2)
        process.send_signal(signal.SIGTERM)
        await frontend.until(lambda: engine.state is EngineState.DRAINING)
        assert page(port, "/health/ready")[0] == 503
        assert page(port, "/health/live")[0] == 200
        assert (await frontend.answer("second")).finish_reason is FinishReason.LENGTH
        code, log = await ended(process)
        assert code == 0
        assert "draining: 1 running and 0 waiting requests" in log
        await frontend.until(lambda: bool(frontend.lost))


@pytest.mark.parametrize(
    ("options", "features", "algorithm", "cached"),
    [
        ((), ("prefix-cache",), "blake2b", 48),
        (("--no-enable-prefix-caching",), (), "blake2b", 0),
        (("--prefix-caching-hash-algo", "sha256"), ("prefix-cache",), "sha256", 48),
        (("--scheduling-policy", "priority", "--async-scheduling"), ("prefix-cache", "priority"), "blake2b", 48),
    ],
)
async def test_an_engine_tells_what_it_can_and_does_it(
    frontend: Frontend,
    address: str,
    options: tuple[str, ...],
    features: tuple[str, ...],
    algorithm: str,
    cached: int,
) -> None:
    async with run_engine(*FAKE, "serve", "demo://", "--link", address, *options) as process:
        engine = await frontend.ready()
        assert capacity_of(engine).features == features
        assert capacity_of(engine).hash_algorithm == algorithm
        for name in ("first", "second"):
            frontend.ask(engine, name, 3, prompt=[7] * 50)
            await frontend.answer(name)
        assert [output.num_cached_tokens for output in frontend.received("first")] == [0, None, None]
        assert [output.num_cached_tokens for output in frontend.received("second")] == [cached, None, None]
        frontend.link.send(engine.incarnation, Call(3, "reset_prefix_cache"))
        await frontend.until(lambda: bool(frontend.results))
        [result] = frontend.results
        assert (result.id, result.error == "") == (3, cached > 0)
        process.send_signal(signal.SIGTERM)
        assert (await ended(process))[0] == 0


async def test_a_second_sigterm_ends_at_once(frontend: Frontend, address: str) -> None:
    async with run_engine(*FAKE, "slow", "demo://", "--link", address) as process:
        engine = await frontend.ready()
        frontend.ask(engine, "long", 2000)
        await frontend.until(lambda: bool(frontend.outputs))
        process.send_signal(signal.SIGTERM)
        await frontend.until(lambda: engine.state is EngineState.DRAINING)
        process.send_signal(signal.SIGTERM)
        assert (await ended(process))[0] == -signal.SIGTERM
        await frontend.until(lambda: bool(frontend.lost))


async def test_a_failing_step_is_reported_and_sets_the_exit_code(frontend: Frontend, address: str) -> None:
    async with run_engine(*FAKE, "fail", "demo://", "--link", address) as process:
        frontend.ask(await frontend.ready(), "a", 8)
        code, log = await ended(process)
        assert code == ExitCode.FAILED
        assert log.count("Traceback") == 1  # a fault of ours
        assert find_failure(log.splitlines()[-1]) == Failure(Reason.CRASH_LOOPING, "RuntimeError: device lost")
        await frontend.until(lambda: bool(frontend.lost))
        assert "RuntimeError: device lost" in frontend.lost[0]
        assert names(frontend.ran[0]) == ["a"]


async def test_idle_engine_whose_worker_dies_fails(frontend: Frontend, address: str) -> None:
    async with run_engine(*FAKE, "idle-fail", "demo://", "--link", address) as process:
        await frontend.ready()
        code, log = await ended(process)
        assert code == ExitCode.FAILED
        assert find_failure(log.splitlines()[-1]) == Failure(Reason.CRASH_LOOPING, "RuntimeError: a worker died")
        await frontend.until(lambda: bool(frontend.lost))
        assert "a worker died" in frontend.lost[0]
        assert names(frontend.ran[0]) == []


async def test_successor_names_what_a_killed_engine_computed(
    frontend: Frontend, address: str, tmp_path: Path
) -> None:
    options = ("--link", address, "--black-box", str(tmp_path / "box"))
    one_row = ("--max-num-seqs", "1", "--slow-step", "100ms")
    async with run_engine(*FAKE, "hang", "demo://", *options, *one_row) as process:
        engine = await frontend.ready()
        frontend.ask(engine, "runs", 8)
        frontend.ask(engine, "waits", 8)
        async with asyncio.timeout(WAIT):
            while b" takes " not in (line := await log_line(process)):
                assert line, "the engine has ended"
        process.kill()
        await frontend.until(lambda: bool(frontend.lost))
        assert frontend.ran == [None]  # it could not report anything
    async with run_engine(*FAKE, "serve", "demo://", *options) as process:
        successor = await frontend.ready()
        crashed = frontend.crashed[-1]
        assert crashed is not None
        assert (crashed.incarnation, names(crashed)) == (engine.incarnation, ["runs"])
        assert crashed.requests[0].digest == request_digest(packed(PROMPT), RequestCore(params(8)))
        frontend.ask(successor, "later", 2)
        await frontend.until(lambda: bool(frontend.outputs) and frontend.outputs[-1].finish_reason is not None)
        process.terminate()
        await ended(process)
        assert names(frontend.ran[-1]) == []
    async with run_engine(*FAKE, "serve", "demo://", *options):
        await frontend.ready()
        assert frontend.crashed[-1] == FailedStep(successor.incarnation)  # it was idle


async def test_an_idle_engine_drains_after_a_signal_to_another_thread(frontend: Frontend, address: str) -> None:
    """Such a signal does not end the system call in which the main thread waits; nor does one just before it."""
    async with run_engine(*FAKE, "serve", "demo://", "--link", address) as process:
        engine = await frontend.ready()
        frontend.ask(engine, "r", 2)
        await frontend.until(lambda: bool(frontend.outputs) and frontend.outputs[-1].finish_reason is not None)
        tasks = Path("/proc", str(process.pid), "task")
        looks = 0
        async with asyncio.timeout(WAIT):
            while looks < 10:  # no message of the frontend is on its way
                waits = "futex" in (tasks / str(process.pid) / "wchan").read_text()
                looks = looks + 1 if waits else 0
                await asyncio.sleep(0.05)
        other = max(int(name) for name in os.listdir(tasks))
        assert ctypes.CDLL(None).tgkill(process.pid, other, signal.SIGTERM) == 0
        code, _ = await ended(process)
        assert code == ExitCode.OK


async def test_a_hanging_step_is_logged_with_rank_phase_and_place(frontend: Frontend, address: str) -> None:
    command = (*FAKE, "hang", "demo://", "--link", address, "--data-parallel-rank", "2", "--slow-step", "100ms")
    async with run_engine(*command) as process:
        port = await ops_port(process)
        frontend.ask(await frontend.ready(), "a", 8)
        async with asyncio.timeout(WAIT):
            while b" takes " not in (line := await log_line(process)):
                assert line, "the engine has ended"
        assert b"rank 2: step 1 takes " in line
        assert (
            b"in phase execute; 1 row, 4 tokens, the longest a (4 after 0 tokens); it is at engine/core.py" in line
        )
        step = json.loads(page(port, "/status")[1])["step"]
        assert (step["number"], step["phase"]) == (1, "execute")


async def test_engine_announces_and_keeps_its_bound_on_queued_tokens(frontend: Frontend, address: str) -> None:
    limit = 2 * (len(PROMPT) + REQUEST_TOKENS)
    options = ("--max-queued-tokens", str(limit), "--max-num-seqs", "1")
    async with run_engine(*FAKE, "slow", "demo://", "--link", address, *options):
        engine = await frontend.ready()
        assert capacity_of(engine).max_queued_tokens == limit
        frontend.ask(engine, "running", 2000)
        await frontend.until(lambda: bool(frontend.outputs))
        for name in ("first", "second", "third"):
            frontend.ask(engine, name, 8)
        refused = await frontend.answer("third")
        assert (refused.finish_reason, refused.refusal) == (FinishReason.ERROR, RefusalKind.OVERLOADED)
        assert not frontend.received("first") + frontend.received("second")


@pytest.mark.parametrize("mode", ["load", "slow-end"])
async def test_a_signal_during_the_start_up_ends_it_with_a_goodbye(
    frontend: Frontend, address: str, mode: str
) -> None:
    async with run_engine(*FAKE, mode, "demo://", "--link", address) as process:
        await frontend.until(lambda: any(engine.progress for engine in frontend.link.engines.values()))
        [engine] = frontend.link.engines.values()
        assert (engine.state, engine.progress) == (EngineState.LOADING, Progress(2, 3))
        process.send_signal(signal.SIGINT)
        code, log = await ended(process)
        assert code == 0
        assert "stopped before it was ready" in log
        await frontend.until(lambda: bool(frontend.lost))


async def test_sigterm_during_the_first_step_ends_it(frontend: Frontend, address: str) -> None:
    async with run_engine(*FAKE, "warm", "demo://", "--link", address) as process:
        await frontend.until(lambda: EngineState.WARMING in frontend.states)
        process.send_signal(signal.SIGTERM)
        code, log = await ended(process)
        assert (code, find_failure(log)) == (0, None)
        await frontend.until(lambda: bool(frontend.lost))


async def test_sigterm_while_the_hub_does_not_answer_ends_it(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with silent_hub(monkeypatch) as asked, run_engine(*REAL, "hf://org/name", "--link", address) as process:
        await asked.wait()
        process.send_signal(signal.SIGTERM)
        code, log = await ended(process)
        assert (code, find_failure(log)) == (0, None)


async def test_the_drain_timeout_ends_an_adapters_download(
    frontend: Frontend, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--link", address, "--enable-lora", "--drain-timeout", "1")
    async with silent_hub(monkeypatch) as asked, run_engine(*FAKE, "serve", "demo://", *options) as process:
        engine = await frontend.ready()
        frontend.ask(engine, "a", 8, adapter=Adapter("sql", "hf://org/sql", "digest"))
        await asked.wait()
        process.send_signal(signal.SIGTERM)
        last = await frontend.answer("a")
        assert "did not finish within 1 s" in last.error
        async with asyncio.timeout(4):  # a read of the hub takes 10 s
            code, _ = await ended(process)
        assert code == 0


async def test_idle_engine_ends_as_soon_as_frontends_have_noticed(frontend: Frontend, address: str) -> None:
    async with run_engine(*FAKE, "serve", "demo://", "--link", address) as process:
        await frontend.ready()
        process.send_signal(signal.SIGTERM)
        sent = time.monotonic()
        code, _ = await ended(process)
        assert code == 0
        assert time.monotonic() - sent < DRAIN_SETTLE_SECONDS, "it did not read the frontend's answer"


async def test_a_setting_that_does_not_fit_logs_one_line(address: str) -> None:
    options = ("--max-model-len", "512", "--num-gpu-blocks-override", "4")
    async with run_engine(*FAKE, "serve", "demo://", "--link", address, *options) as process:
        code, log = await ended(process)
    assert code == ExitCode.USER_ERROR
    failure = find_failure(log.splitlines()[-1])
    assert failure is not None
    assert failure.reason is Reason.INVALID_SPEC
    assert "--max-model-len 512 does not fit into the KV cache: its 4 blocks of 16 tokens hold" in failure.message
    assert "Traceback" not in log


async def test_a_context_that_nobody_asked_for_shrinks_to_the_kv_cache(frontend: Frontend, address: str) -> None:
    async with run_engine(*FAKE, "serve", "demo://", "--link", address, "--num-gpu-blocks-override", "4"):
        engine = await frontend.ready()
        assert capacity_of(engine).max_model_len == 65
        frontend.ask(engine, "a", 1000)
        last = await frontend.answer("a")
        assert (last.finish_reason, last.position) == (FinishReason.LENGTH, 65 - len(PROMPT) - 1)


@pytest.mark.parametrize(
    ("model", "reason", "says"),
    [
        ("/no/such/model", Reason.MODEL_NOT_FOUND, "/no/such/model does not exist"),
        ("ftp://x", Reason.INVALID_SPEC, "the scheme ftp:// is unknown"),
    ],
)
async def test_a_model_that_is_not_there_is_a_line_without_a_traceback(
    model: str, reason: Reason, says: str, address: str
) -> None:
    async with run_engine(*FAKE, "serve", model, "--link", address) as process:
        code, log = await ended(process)
    assert code == ExitCode.USER_ERROR
    failure = find_failure(log.splitlines()[-1])
    assert failure is not None
    assert failure.reason is reason
    assert says in failure.message
    assert "Traceback" not in log
