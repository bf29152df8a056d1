import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import httpx
import pytest

from kvasir.hub.model_info import load_model_info
from kvasir.hub.source import fetch
from kvasir.hub.tokenizer import load_tokenizer
from kvasir.request.constraint import Grammar, GrammarKind, OutputConstraint
from kvasir.request.params import SamplingParams
from kvasir_contract.endpoints import LIVE_PATH, READY_PATH, STATUS_PATH
from kvasir_contract.exits import ExitCode
from kvasir_contract.failure import find_failure
from kvasir_contract.phases import Phase
from kvasir_contract.status_report import StatusReport
from runtime.engine.engine_under_test import PROMPT, WAIT, Frontend, ended
from runtime.executor.nodes.node_pair import free_port
from runtime.executor.processes import children_of, seconds_until_gone
from runtime.executor.split_engine import SplitEngine
from runtime.worker.driver import engine_settings

MAX_SECONDS = 20.0
"""Seconds from a death to the end. A machine without other load takes well under one; a timeout takes longer."""
TOKENS = 24
MANY_DIGITS = OutputConstraint(Grammar(GrammarKind.REGEX, "[0-9]{7}"))
Process = asyncio.subprocess.Process


@dataclass
class Nodes:
    """The processes of an engine with two nodes."""

    leader: Process
    member: Process
    ops: str
    """Base URL of the member's probes."""

    def worker(self, node: Process) -> int:
        [worker] = children_of(node.pid)
        return worker


@contextlib.asynccontextmanager
async def two_nodes(address: str, *options: str, split: Sequence[str] = ("-tp", "2")) -> AsyncIterator[Nodes]:
    port, ops = free_port(), free_port()
    common = (
        *(sys.executable, "-m", "kvasir.cli.main", "engine", "demo://", "--device", "cpu", "--dtype", "float32"),
        *("--kv-cache-memory-bytes", "16Mi", "--link", address, *split, "--nnodes", "2"),
        *("--master-addr", "127.0.0.1", "--master-port", str(port), *options),
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        await asyncio.create_subprocess_exec(*common, *own, stderr=asyncio.subprocess.PIPE, env=environment)
        for own in (("--ops-port", "0"), ("--node-rank", "1", "--ops-port", str(ops)))
    ]
    try:
        yield Nodes(processes[0], processes[1], f"http://127.0.0.1:{ops}")
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()


def tokens_of_one_process() -> list[int]:
    engine = SplitEngine(
        load_model_info(fetch("demo://", weights=True)), engine_settings(num_blocks=64, max_model_len=256)
    )
    params = SamplingParams(max_tokens=TOKENS, seed=0, temperature=0, ignore_eos=True)
    engine.add("a", PROMPT, params)
    engine.run()
    return engine.answers["a"].tokens


def probes(ops: str) -> tuple[int, int, bytes]:
    live, ready, status = (httpx.get(ops + path) for path in (LIVE_PATH, READY_PATH, STATUS_PATH))
    return live.status_code, ready.status_code, status.content


def first_child(pid: int) -> int:
    """Wait until the process has started another one."""
    deadline = time.monotonic() + WAIT
    while not children_of(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return children_of(pid)[0]


async def gone(pids: list[int]) -> None:
    await asyncio.to_thread(seconds_until_gone, pids, MAX_SECONDS)


async def answer(frontend: Frontend, request_id: str, constraint: OutputConstraint | None = None) -> list[int]:
    frontend.ask(await frontend.ready(), request_id, TOKENS, constraint=constraint)
    await frontend.answer(request_id)
    return [token for output in frontend.received(request_id) for token in output.token_ids]


async def test_two_nodes_answer_as_one_process_and_join_again(frontend: Frontend, address: str) -> None:
    expected = await asyncio.to_thread(tokens_of_one_process)
    for start in range(2):  # the second one after the death of the member
        async with two_nodes(address) as nodes:
            assert await answer(frontend, f"r{start}") == expected
            text = load_tokenizer(fetch("demo://", weights=False)).decode(
                await answer(frontend, f"constrained{start}", MANY_DIGITS)
            )
            assert len(text) == 7
            assert text.isdigit()
            live, ready, status = await asyncio.to_thread(probes, nodes.ops)
            assert (live, ready) == (200, 200)
            report = StatusReport.from_json(status)
            assert (report.phase, report.message, report.rank) == (Phase.READY, "", 0)
            workers = [nodes.worker(nodes.leader), nodes.worker(nodes.member)]
            if start == 0:
                await member_dies(nodes, frontend)
            else:
                await leader_dies(nodes)
            await gone(workers)


async def member_dies(nodes: Nodes, frontend: Frontend) -> None:
    nodes.member.kill()
    killed = time.monotonic()
    code, log = await ended(nodes.leader)
    assert time.monotonic() - killed < MAX_SECONDS
    assert code == ExitCode.FAILED
    failure = find_failure(log)
    assert failure is not None
    assert failure.message == "node 1 (127.0.0.1) is lost: its connection broke"
    await frontend.until(lambda: not frontend.link.engines)
    assert failure.message in frontend.lost[0]


async def leader_dies(nodes: Nodes) -> None:
    nodes.leader.kill()
    code, log = await ended(nodes.member)
    assert code == ExitCode.FAILED
    failure = find_failure(log)
    assert failure is not None
    assert "node 0 at 127.0.0.1" in failure.message
    assert "is lost: the connection broke" in failure.message


async def test_last_stage_of_a_pipeline_may_be_on_another_node(frontend: Frontend, address: str) -> None:
    expected = await asyncio.to_thread(tokens_of_one_process)
    async with two_nodes(address, split=("--pipeline-parallel-size", "2")):
        answers = [await answer(frontend, name) for name in "ab"]
        assert answers == [expected, expected]


@pytest.mark.parametrize("frozen", ["member", "worker"])
async def test_frozen_node_ends_the_engine_after_the_timeout(frontend: Frontend, address: str, frozen: str) -> None:
    async with two_nodes(address, "--heartbeat-timeout", "3s", "--worker-timeout", "3s") as nodes:
        engine = await frontend.ready()
        workers = [nodes.worker(nodes.leader), nodes.worker(nodes.member)]
        stopped = nodes.member.pid if frozen == "member" else workers[1]
        os.kill(stopped, signal.SIGSTOP)
        frontend.ask(engine, "a", 4)
        code, log = await ended(nodes.leader)
        assert code == ExitCode.FAILED
        failure = find_failure(log)
        assert failure is not None
        assert "node 1 (127.0.0.1)" in failure.message
        if frozen == "member":
            os.kill(stopped, signal.SIGCONT)
        else:
            assert "worker 1" in failure.message
        code, log = await ended(nodes.member)
        assert code == ExitCode.FAILED
        await gone(workers)


@pytest.mark.parametrize("place", [0, 1])
async def test_death_of_a_worker_names_its_node(frontend: Frontend, address: str, place: int) -> None:
    async with two_nodes(address) as nodes:
        await frontend.ready()
        workers = [nodes.worker(nodes.leader), nodes.worker(nodes.member)]
        os.kill(workers[place], signal.SIGKILL)
        killed = time.monotonic()
        code, log = await ended(nodes.leader)
        assert time.monotonic() - killed < MAX_SECONDS
        of_member, log_of_member = await ended(nodes.member)
        assert (code, of_member) == (ExitCode.FAILED, ExitCode.FAILED)
        text = f"worker {place} was killed by SIGKILL in phase idle"
        for each in (log, log_of_member):
            failure = find_failure(each)
            assert failure is not None
            assert text in failure.message
        assert ("node 1 (127.0.0.1): worker 1" in log) == (place == 1)
        await gone(workers)


async def test_sigterm_to_the_leader_ends_a_member_for_its_next_start(frontend: Frontend, address: str) -> None:
    async with two_nodes(address) as nodes:
        await frontend.ready()
        nodes.leader.terminate()
        code, _ = await ended(nodes.leader)
        assert code == ExitCode.OK
        code, log = await ended(nodes.member)
        assert code == ExitCode.FAILED  # so that it is started again, and joins the next incarnation
        assert "it has ended: the engine ends" in log


@pytest.mark.parametrize("both", [False, True])
async def test_sigterm_to_a_member_lets_the_engine_finish(frontend: Frontend, address: str, both: bool) -> None:
    """Kubernetes may end one pod, or all of them at the same moment."""
    expected = await asyncio.to_thread(tokens_of_one_process)
    async with two_nodes(address) as nodes:
        frontend.ask(await frontend.ready(), "a", TOKENS)
        await frontend.until(lambda: bool(frontend.received("a")))
        nodes.member.terminate()
        if both:
            nodes.leader.terminate()
        await frontend.answer("a")
        assert [token for output in frontend.received("a") for token in output.token_ids] == expected
        code, log = await ended(nodes.member)
        assert code == ExitCode.OK, log
        code, log = await ended(nodes.leader)
        assert code == ExitCode.OK, log


async def test_sigterm_ends_a_member_without_an_engine_at_once(frontend: Frontend, address: str) -> None:
    async with two_nodes(address) as nodes:
        worker = await asyncio.to_thread(first_child, nodes.member.pid)
        nodes.member.terminate()
        asked = time.monotonic()
        code, log = await ended(nodes.member)
        assert time.monotonic() - asked < MAX_SECONDS
        assert code == ExitCode.OK, log
        await gone([worker])
        code, log = await ended(nodes.leader)
        assert code == ExitCode.FAILED
        assert "node 1 (127.0.0.1) is lost" in log
