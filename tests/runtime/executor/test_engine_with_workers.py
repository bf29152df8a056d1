import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from kvasir.hub.source import fetch
from kvasir.link.frontend_end.remote_engine import EngineState
from kvasir_contract.exits import ExitCode
from kvasir_contract.failure import find_failure
from kvasir_contract.reasons import Reason
from runtime.engine.engine_under_test import WAIT, Frontend, ended, run_engine
from runtime.executor.processes import children_of, cpu_seconds, imports_torch, seconds_until_gone
from runtime.worker.plugins import install_plugins

SCRIPT = Path(__file__).with_name("engine_with_workers.py")
MAX_SECONDS = 20.0
"""Seconds from a death to the end. A machine without other load takes well under one; a timeout takes longer."""
PATIENCE = 1.5
SPLIT = ["--tensor-parallel-size", "2"]
STAGES = ["--pipeline-parallel-size", "2"]


def engine_of(
    workers: int, address: str, *options: str
) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
    return run_engine(
        *(sys.executable, str(SCRIPT), str(workers), "demo://", "--link", address),
        *("--kv-cache-memory-bytes", "16Mi", "--worker-timeout", f"{PATIENCE}s", *options),
    )


async def failed(process: asyncio.subprocess.Process) -> tuple[str, str]:
    """Return the reported failure and the log of an engine that ends because of a worker."""
    code, log = await ended(process)
    failure = find_failure(log)
    assert (code, failure and failure.reason) == (ExitCode.FAILED, Reason.CRASH_LOOPING)
    assert failure is not None
    return failure.message, log


async def reach(phase: str, frontend: Frontend, folder: Path, workers: int) -> None:
    """Wait until all workers are in this phase."""
    if phase in ("prefill", "decode", "idle"):
        engine = await frontend.ready()
        if phase != "idle":
            frontend.ask(engine, "a", 8)
    if phase != "idle":
        await asyncio.to_thread(wait_for_files, folder, workers)


def wait_for_files(folder: Path, number: int) -> None:
    deadline = time.monotonic() + WAIT
    while len(list(folder.iterdir())) < number:
        assert time.monotonic() < deadline, "no worker reached the phase"
        time.sleep(0.01)


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which each worker that waits leaves a file."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "held").mkdir()
    install_plugins(tmp_path / "plugins", monkeypatch)
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path / "held"))
    return tmp_path / "held"


@pytest.mark.parametrize(
    ("phase", "victim"), [("load", 1), ("warm-up", 0), ("prefill", 1), ("decode", 1), ("idle", 0)]
)
async def test_killed_worker_ends_the_engine_at_once(
    frontend: Frontend, address: str, held: Path, monkeypatch: pytest.MonkeyPatch, phase: str, victim: int
) -> None:
    monkeypatch.setenv("TEST_ACTION", f"hold {phase}")
    segments = set(os.listdir("/dev/shm"))
    async with engine_of(2, address, "--worker-cls", "held", "--worker-timeout", "60s") as engine:
        await reach(phase, frontend, held, 2)
        workers = children_of(engine.pid)
        assert len(workers) == 2
        os.kill(workers[victim], signal.SIGKILL)
        killed = time.monotonic()
        message, log = await failed(engine)
        assert time.monotonic() - killed < MAX_SECONDS
        assert seconds_until_gone(workers, MAX_SECONDS) < MAX_SECONDS
    text = f"worker {victim} was killed by SIGKILL in phase {phase}"
    assert message.startswith(text)
    assert any("ERROR" in line and text in line for line in log.splitlines()), log
    assert "Traceback" not in log
    if phase != "load":  # a frontend that has accepted the engine
        await frontend.until(lambda: bool(frontend.lost))
        assert text in frontend.lost[0]
    assert set(os.listdir("/dev/shm")) <= segments


@pytest.mark.parametrize(("phase", "victim"), [("load", 1), ("warm-up", 0), ("prefill", 1), ("decode", 0)])
async def test_killed_rank_ends_the_engine_while_another_waits_for_it(
    frontend: Frontend, address: str, held: Path, monkeypatch: pytest.MonkeyPatch, phase: str, victim: int
) -> None:
    """Rank 1 does not begin; rank 0 waits in an exchange, except in the phase load."""
    monkeypatch.setenv("TEST_ACTION", f"hold {phase}")
    monkeypatch.setenv("TEST_RANK", "1")
    async with engine_of(2, address, *SPLIT, "--worker-cls", "held", "--worker-timeout", "60s") as engine:
        await reach(phase, frontend, held, 1)
        workers = children_of(engine.pid)
        os.kill(workers[victim], signal.SIGKILL)
        killed = time.monotonic()
        message, log = await failed(engine)
        assert time.monotonic() - killed < MAX_SECONDS
        seconds_until_gone(workers, MAX_SECONDS)
    assert message.startswith(f"worker {victim} was killed by SIGKILL in phase")
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("workers", "options", "phase", "victim", "name"),
    [
        (2, STAGES, "warm-up", 0, "worker 0 (stage 0)"),
        (2, STAGES, "decode", 1, "worker 1 (stage 1)"),
        (4, [*SPLIT, *STAGES], "prefill", 3, "worker 3 (stage 1, tensor rank 1)"),
    ],
)
async def test_killed_pipeline_worker_ends_the_engine(
    frontend: Frontend,
    address: str,
    held: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    options: list[str],
    phase: str,
    victim: int,
    name: str,
) -> None:
    """Worker 0 does not begin; those of the next stage wait for its tensor."""
    monkeypatch.setenv("TEST_ACTION", f"hold {phase}")
    monkeypatch.setenv("TEST_RANK", "0")
    async with engine_of(workers, address, *options, "--worker-cls", "held", "--worker-timeout", "60s") as engine:
        await reach(phase, frontend, held, 1)
        pids = children_of(engine.pid)
        assert len(pids) == workers
        os.kill(pids[victim], signal.SIGKILL)
        killed = time.monotonic()
        message, log = await failed(engine)
        assert time.monotonic() - killed < MAX_SECONDS
        seconds_until_gone(pids, MAX_SECONDS)
    # It is idle as long as it has not got the step yet that worker 0 has begun.
    assert re.match(rf"{re.escape(name)} was killed by SIGKILL in phase ({phase}|idle)", message)
    assert "Traceback" not in log


async def test_engine_names_a_hung_rank_before_its_peers_give_up(
    frontend: Frontend, address: str, held: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_ACTION", "hold decode")
    monkeypatch.setenv("TEST_RANK", "1")
    async with engine_of(2, address, *SPLIT, "--worker-cls", "held") as engine:
        await reach("decode", frontend, held, 1)
        message, _ = await failed(engine)
    waits = r"worker 0 is in phase decode of step \d+ for [\d.]+ s, at parallel/torch_group.py:\d+ \(all_reduce\) ←"
    hangs = r"worker 1 is in phase decode of step \d+ for [\d.]+ s, at executor/worker_host.py:\d+ \(_execute\) ←"
    assert re.match(rf"no reply to a step within {PATIENCE:g} s: {waits}.*; {hangs}", message)


async def test_hung_stage_is_named_with_the_stage_that_waits_for_it(
    frontend: Frontend, address: str, held: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_ACTION", "hold decode")
    monkeypatch.setenv("TEST_RANK", "0")
    async with engine_of(2, address, *STAGES, "--worker-cls", "held") as engine:
        await reach("decode", frontend, held, 1)
        message, _ = await failed(engine)
    phase = r"is in phase decode of step \d+ for [\d.]+ s"
    hangs = rf"worker 0 \(stage 0\) {phase}, at executor/worker_host.py:\d+ \(_execute\) ←"
    receives = r"parallel/torch_group.py:\d+ \(recv\) ← worker/stage_link.py:\d+ \(receive\)"
    waits = rf"worker 1 \(stage 1\) {phase}, at {receives}"
    assert re.match(rf"no reply to a step within {PATIENCE:g} s: {hangs}.*; {waits}", message)


@pytest.mark.parametrize("phase", ["load", "decode", "idle"])
async def test_frozen_worker_ends_the_engine_after_the_timeout(
    frontend: Frontend, address: str, held: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    monkeypatch.setenv("TEST_ACTION", f"hold {phase}")
    async with engine_of(2, address, "--worker-cls", "held") as engine:
        await reach(phase, frontend, held, 2)
        workers = children_of(engine.pid)
        os.kill(workers[1], signal.SIGSTOP)
        frozen = time.monotonic()
        message, _ = await failed(engine)
        assert PATIENCE * 0.5 < time.monotonic() - frozen < PATIENCE + MAX_SECONDS
        seconds_until_gone(workers, MAX_SECONDS)
    # In a step, the timeout of the step may end first.
    assert re.search(rf"worker 1 (has been stopped for {PATIENCE:g} s|is stopped) in phase {phase}", message)


async def test_worker_that_goes_on_in_time_ends_nothing(frontend: Frontend, address: str) -> None:
    async with engine_of(2, address) as process:
        engine = await frontend.ready()
        for worker in children_of(process.pid):
            os.kill(worker, signal.SIGSTOP)
            os.kill(worker, signal.SIGCONT)
        await asyncio.sleep(PATIENCE + 0.5)
        frontend.ask(engine, "a", 8)
        assert (await frontend.answer("a")).finish_reason is not None


async def test_step_that_hangs_ends_the_engine_after_the_timeout(
    frontend: Frontend, address: str, held: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_ACTION", "hold decode")
    async with engine_of(2, address, "--worker-cls", "held", "--slow-step", "200ms") as engine:
        await reach("decode", frontend, held, 2)
        message, log = await failed(engine)
    place = r"at executor/worker_host.py:\d+ \(_execute\) ← .* ← executor/processes/worker_process.py:\d+ \(_step\)"
    workers = [rf"worker {rank} is in phase decode of step \d+ for [\d.]+ s, {place}.*" for rank in (0, 1)]
    assert re.match(rf"no reply to a step within {PATIENCE:g} s: {'; '.join(workers)}", message)
    slow = [line for line in log.splitlines() if "takes" in line]
    assert re.search(rf"rank 0: step \d+ takes .* in phase execute.*; {'; '.join(workers)}", slow[0])


@pytest.mark.parametrize("phase", ["load", "decode", "idle"])
async def test_workers_end_with_a_killed_engine(
    frontend: Frontend, address: str, held: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    monkeypatch.setenv("TEST_ACTION", f"hold {phase}")
    async with engine_of(2, address, "--worker-cls", "held") as engine:
        await reach(phase, frontend, held, 2)
        workers = children_of(engine.pid)
        os.kill(workers[0], signal.SIGSTOP)  # only the kernel can end this one
        engine.kill()
        assert seconds_until_gone(workers, MAX_SECONDS) < MAX_SECONDS


@pytest.mark.parametrize("weights", [True, False])
async def test_engine_refuses_a_split_before_it_reads_weights(address: str, tmp_path: Path, weights: bool) -> None:
    """A worker refuses it, or without weights the engine itself before it downloads them."""
    for file in fetch("demo://", weights=True).iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, tmp_path)
    if weights:
        (tmp_path / "model.safetensors").touch()
    command = ("-m", "kvasir.cli.main", "engine", str(tmp_path), "--link", address, "--tensor-parallel-size", "3")
    async with run_engine(sys.executable, *command) as process:
        code, log = await ended(process)
    failure = find_failure(log)
    assert failure is not None
    assert (code, failure.reason) == (ExitCode.USER_ERROR, Reason.INVALID_SPEC)
    assert failure.message.startswith("--tensor-parallel-size 3 does not divide num_attention_heads")
    assert ("engine-0-worker-0" in log) == weights
    assert "Traceback" not in log


async def test_engine_with_workers_does_not_import_torch(frontend: Frontend, address: str) -> None:
    async with engine_of(2, address, *SPLIT) as process:
        engine = await frontend.ready()
        frontend.ask(engine, "a", 8)
        assert (await frontend.answer("a")).finish_reason is not None
        assert [imports_torch(pid) for pid in (process.pid, *children_of(process.pid))] == [False, True, True]


async def quiet_second(pids: list[int]) -> bool:
    """Return whether the engine and its workers slept for a second."""
    before = [cpu_seconds(pid) for pid in pids]
    await asyncio.sleep(1)
    engine, *workers = [cpu_seconds(pid) - earlier for pid, earlier in zip(pids, before, strict=True)]
    return engine <= 0.02 and max(workers) <= 0.0


@pytest.mark.parametrize(("workers", "options"), [(4, []), (2, SPLIT), (2, STAGES)])
async def test_idle_workers_use_no_cpu_and_leave_on_sigterm(
    frontend: Frontend, address: str, workers: int, options: list[str]
) -> None:
    async with engine_of(workers, address, *options) as process:
        engine = await frontend.ready()
        frontend.ask(engine, "a", 8)
        await frontend.answer("a")
        pids = [process.pid, *children_of(process.pid)]
        assert len(pids) == 1 + workers
        for _ in range(20):  # the memory of the caches is taken at first
            if await quiet_second(pids):
                break
        else:
            raise AssertionError("the engine and its workers use CPU time while they are idle")
        for pid in pids:  # as a terminal does for Ctrl-C
            os.kill(pid, signal.SIGINT)
        await frontend.until(lambda: engine.state is EngineState.DRAINING or bool(frontend.lost))
        code, log = await ended(process)
        assert (code, find_failure(log)) == (ExitCode.OK, None)
        seconds_until_gone(pids[1:], MAX_SECONDS)
