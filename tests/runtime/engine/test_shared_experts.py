import asyncio
import gc
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import Qwen3MoeConfig

from kvasir.config.process_settings import LinkConfig
from kvasir.config.settings import EngineConfig, ModelConfig, ParallelConfig
from kvasir.engine.inbox import Inbox
from kvasir.engine.waves import SharedExpertsGroup
from kvasir.hub.model_info import load_model_info
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.link.protocol import FEATURE_WAVES, Heartbeat
from kvasir.parallel.engine_groups import EnginesLost
from kvasir.wire.heartbeats import step_age_limit
from kvasir_contract.exits import ExitCode
from runtime.engine.engine_under_test import Frontend, ended, run_engine
from runtime.engine.test_engine_process import REAL, capacity_of, cpu_seconds
from runtime.executor.split_engine import SplitEngine
from runtime.models.tiny import MODELS, MOE, decoder, llama, save
from runtime.worker.driver import engine_settings, greedy

PROMPTS = [[5, 6, 7, 8], list(range(2, 60)), [9, 9, 9], list(range(100, 120))]
TOKENS = 24
HEARTBEAT_TIMEOUT = LinkConfig().heartbeat_timeout
OPTIONS = ("--dtype", "float32", "--device", "cpu", "--kv-cache-memory-bytes", "16Mi", "--enable-expert-parallel")


@dataclass(frozen=True)
class Model:
    path: Path
    expected: list[list[int]]
    """Return the tokens that one engine generates for each prompt."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = save(MODELS["qwen3-moe-and-dense"](), tmp_path_factory.mktemp("moe"))
    alone = SplitEngine(load_model_info(path), engine_settings())
    for number, prompt in enumerate(PROMPTS):
        alone.add(str(number), prompt, greedy(TOKENS))
    alone.run()
    yield Model(path, [alone.answers[str(number)].tokens for number in range(len(PROMPTS))])
    alone.executor.shutdown()


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


@dataclass
class Group:
    frontend: Frontend
    processes: list[asyncio.subprocess.Process]

    async def engines(self) -> list[RemoteEngine]:
        count = len(self.processes)
        await self.frontend.until(lambda: sum(e.usable for e in self.frontend.link.engines.values()) == count)
        return sorted(self.frontend.link.engines.values(), key=lambda engine: engine.rank)

    async def tokens(self, request_id: str) -> list[int]:
        await self.frontend.answer(request_id)
        return [token for output in self.frontend.received(request_id) for token in output.token_ids]


@asynccontextmanager
async def group_of(path: Path, address: str, options: Sequence[Sequence[str]]) -> AsyncIterator[Group]:
    """An engine for each entry of `options`, which are those of this engine only."""
    frontend, port, size = Frontend(address, path), free_port(), str(len(options))
    await frontend.link.start()
    shared = ("--link", address, "--data-parallel-size", size, "--data-parallel-rpc-port", port, *OPTIONS)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(frontend.link.close)
        processes = [
            await stack.enter_async_context(
                run_engine(*REAL, str(path), *shared, "--data-parallel-rank", str(rank), *own)
            )
            for rank, own in enumerate(options)
        ]
        yield Group(frontend, processes)


def step_limits(frontend: Frontend) -> set[float]:
    limits: set[float] = set()
    handle = frontend.link._on_heartbeat

    def record(engine: RemoteEngine, message: Heartbeat) -> None:
        limits.add(message.step_limit)
        handle(engine, message)

    frontend.link._on_heartbeat = record  # type: ignore[method-assign]
    return limits


async def cpu_of_a_second(process: asyncio.subprocess.Process) -> float:
    before = cpu_seconds(process.pid)
    await asyncio.sleep(1)
    return cpu_seconds(process.pid) - before


async def test_two_engines_answer_as_one_and_sleep_in_between(model: Model, address: str) -> None:
    async with group_of(model.path, address, [(), ()]) as group:
        engines, frontend = await group.engines(), group.frontend
        limits = step_limits(frontend)
        assert all(FEATURE_WAVES in capacity_of(engine).features for engine in engines)
        # One engine idle, each in turn; every answer is a wave of its own.
        for number, rank in ((0, 0), (1, 1)):
            frontend.ask(engines[rank], f"alone-{number}", TOKENS, PROMPTS[number])
            assert await group.tokens(f"alone-{number}") == model.expected[number]
        # Staggered arrivals at both.
        for number, prompt in enumerate(PROMPTS):
            frontend.ask(engines[number % 2], f"both-{number}", TOKENS, prompt)
            await frontend.until(lambda number=number: bool(frontend.received(f"both-{number}")))  # type: ignore[misc]
        for number, expected in enumerate(model.expected):
            assert await group.tokens(f"both-{number}") == expected
        for process in group.processes:
            assert await cpu_of_a_second(process) < 0.2
        assert limits == {step_age_limit(HEARTBEAT_TIMEOUT)}
        frontend.ask(engines[1], "again", TOKENS, PROMPTS[3])
        assert await group.tokens("again") == model.expected[3]
        for process in group.processes:
            process.send_signal(signal.SIGTERM)
        for process in group.processes:
            code, log = await ended(process)
            assert code == ExitCode.OK, log


async def test_an_engine_that_is_stopped_drains_the_other(model: Model, address: str) -> None:
    """Rank 1 finishes its request and takes no further one."""
    async with group_of(model.path, address, [(), ()]) as group:
        engines, frontend = await group.engines(), group.frontend
        frontend.ask(engines[1], "r", 200)
        await frontend.until(lambda: bool(frontend.received("r")))
        group.processes[0].send_signal(signal.SIGTERM)
        await frontend.until(lambda: not any(engine.usable for engine in engines))
        assert len(await group.tokens("r")) == 200
        for process in group.processes:
            code, log = await ended(process)
            assert code == ExitCode.OK, log


async def test_an_idle_engine_that_is_stopped_ends_the_other(model: Model, address: str) -> None:
    async with group_of(model.path, address, [(), ()]) as group:
        await group.engines()
        group.processes[1].send_signal(signal.SIGTERM)
        for process in group.processes:
            code, log = await ended(process)
            assert code == ExitCode.OK, log


@pytest.mark.parametrize(("killed", "busy"), [(0, True), (1, False)])
async def test_the_loss_of_an_engine_ends_the_other(model: Model, address: str, killed: int, busy: bool) -> None:
    async with group_of(model.path, address, [(), ()]) as group:
        engines = await group.engines()
        survivor = 1 - killed
        if busy:
            group.frontend.ask(engines[survivor], "r", 200)
            await group.frontend.until(lambda: bool(group.frontend.received("r")))
        os.kill(group.processes[killed].pid, signal.SIGKILL)
        code, log = await ended(group.processes[survivor])
        assert code == ExitCode.FAILED
        assert "one of the 2 engines that share experts has ended" in log
        await group.frontend.until(lambda: not group.frontend.link.engines)


def test_an_engine_that_is_lost_while_it_loads_is_noticed(model: Model) -> None:
    info, settings, port = load_model_info(model.path), engine_settings(), int(free_port())

    def join(rank: int) -> SharedExpertsGroup:
        parallel = ParallelConfig(rank, data_parallel_size=2, data_parallel_rpc_port=port)
        config = EngineConfig(ModelConfig(str(model.path)), parallel=parallel)
        return SharedExpertsGroup(config, settings, info, lambda text: None)

    with ThreadPoolExecutor(2) as threads:
        groups = list(threads.map(join, range(2)))
    first = groups[0]
    first.new_executor(settings, info, Inbox())
    groups.clear()
    gc.collect()  # with rank 1, its connections end
    with pytest.raises(EnginesLost, match="one of the 2 engines that share experts has ended"):
        first.wait_until_loaded()


@pytest.mark.parametrize(
    ("option", "value", "difference"),
    [
        ("--dtype", "bfloat16", "rank 0 has float32 and rank 1 has bfloat16"),
        ("--max-model-len", "1", "rank 0 has 256 and rank 1 has 1:"),  # its warm-up has no pass
    ],
)
async def test_engines_of_different_settings_are_refused_by_name(
    model: Model, address: str, option: str, value: str, difference: str
) -> None:
    async with group_of(model.path, address, [(), (option, value)]) as group:
        for process in group.processes:
            code, log = await ended(process)
            assert code == ExitCode.USER_ERROR
            assert f"need the same {option}, and {difference}" in log


async def test_models_that_cannot_share_experts_are_refused(tmp_path: Path, address: str) -> None:
    dense = save(llama(), tmp_path / "dense")
    async with group_of(dense, address, [()] * 2) as group:
        code, log = await ended(group.processes[0])
        assert code == ExitCode.USER_ERROR
        assert "LlamaForCausalLM has no experts here" in log
    uneven = save(decoder(Qwen3MoeConfig, **MOE | {"num_experts": 7}), tmp_path / "uneven")
    async with group_of(uneven, address, [()] * 2) as group:
        code, log = await ended(group.processes[1])
        assert code == ExitCode.USER_ERROR
        assert "--data-parallel-size 2: 2 ranks cannot hold the same number of 7 experts" in log


async def test_options_that_do_not_go_with_shared_experts_are_refused(model: Model, address: str) -> None:
    own = ("--tensor-parallel-size", "2")
    async with group_of(model.path, address, [own, own]) as group:
        code, log = await ended(group.processes[0])
        assert code == ExitCode.USER_ERROR
        assert "--tensor-parallel-size 2 is not supported for engines that share experts" in log
