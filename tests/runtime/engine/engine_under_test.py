"""An engine process under test: a frontend's end of its link, and its start and end."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from kvasir.config.process_settings import LinkConfig
from kvasir.hub.model_info import load_model_info
from kvasir.hub.source import fetch
from kvasir.link.frontend_end.frontend_link import FrontendLink
from kvasir.link.frontend_end.link_events import (
    CallAnswered,
    EngineChanged,
    EngineJoined,
    EngineLost,
    OutputsReceived,
)
from kvasir.link.frontend_end.remote_engine import EngineState, RemoteEngine
from kvasir.link.protocol import AddRequest, FailedStep, RequestOutput, Result
from kvasir.request.adapter import Adapter
from kvasir.request.constraint import OutputConstraint
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import packed

WAIT = 60.0
PROMPT = [5, 6, 7, 8]


def params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=0, temperature=0, ignore_eos=True)


class Frontend:
    def __init__(self, address: str, path: Path | None = None, keys: Path | None = None) -> None:
        """`path`: of the model; None: the demo. `keys`: the directory with the frontends' link keys."""
        model = load_model_info(path or fetch("demo://", weights=False))
        self.states: list[EngineState] = []
        self.outputs: list[RequestOutput] = []
        self.results: list[Result] = []
        self.lost: list[str] = []
        self.ran: list[FailedStep | None] = []
        """For each engine that was lost: the step that failed."""
        self.crashed: list[FailedStep | None] = []
        """For each engine that joined: the step that its predecessor reports."""
        self._news = asyncio.Event()
        self.link = FrontendLink(
            LinkConfig(link=(address,), link_keys=None if keys is None else str(keys)),
            service="",
            fingerprint=model.fingerprint,
            tokenizer_hash=model.tokenizer_hash,
            wake=self.take,
        )

    def take(self) -> None:
        while self.link.events:
            match self.link.events.popleft():
                case EngineJoined(engine):
                    self.states.append(engine.state)
                    self.crashed.append(engine.crashed)
                case EngineChanged(engine):
                    self.states.append(engine.state)
                case OutputsReceived(_, message):
                    self.outputs += message.outputs
                case CallAnswered(_, result):
                    self.results.append(result)
                case EngineLost(_, reason, ran):
                    self.lost.append(reason)
                    self.ran.append(ran)
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def ready(self) -> RemoteEngine:
        await self.until(lambda: any(engine.usable for engine in self.link.engines.values()))
        [engine] = self.link.engines.values()
        return engine

    def ask(
        self,
        engine: RemoteEngine,
        request_id: str,
        max_tokens: int,
        prompt: list[int] = PROMPT,
        constraint: OutputConstraint | None = None,
        adapter: Adapter | None = None,
    ) -> None:
        message = AddRequest(
            request_id, 0, packed(prompt), b"", params(max_tokens), constraint=constraint, adapter=adapter
        )
        assert self.link.send(engine.incarnation, message)

    def received(self, request_id: str) -> list[RequestOutput]:
        return [output for output in self.outputs if output.request_id == request_id]

    async def answer(self, request_id: str) -> RequestOutput:
        await self.until(lambda: any(output.finish_reason for output in self.received(request_id)))
        return self.received(request_id)[-1]


@pytest.fixture
def address() -> Iterator[str]:
    directory = Path(tempfile.mkdtemp(prefix="kv"))  # short: a socket's path has 107 characters at most
    yield f"ipc://{directory}/link"
    shutil.rmtree(directory)


@pytest.fixture
async def frontend(address: str) -> AsyncIterator[Frontend]:
    frontend = Frontend(address)
    await frontend.link.start()
    yield frontend
    await frontend.link.close()


@contextlib.asynccontextmanager
async def run_engine(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *command,
        "--ops-port",
        "0",
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    async with asyncio.timeout(WAIT):
        _, log = await process.communicate()
    assert process.returncode is not None
    return process.returncode, log.decode()
