"""Requests that are held, and an engine that answers them, for tests."""

import asyncio
from collections.abc import Iterable

import pytest

from kvasir.client.async_llm import Delta
from kvasir.config.frontend_settings import ServerConfig
from kvasir.link.protocol import AddRequest, FinishReason
from runtime.client.scripted_engine import PATIENCE, READY, ScriptedEngine
from runtime.client.service import LIVE_LIMIT, Service

ROWS = READY.max_num_seqs
Reader = asyncio.Task[list[Delta]]


def server(**settings: object) -> ServerConfig:
    return ServerConfig(max_live_requests=LIVE_LIMIT, **settings)  # type: ignore[arg-type]


def with_server(**settings: object) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("server", [server(**settings)])


async def held(service: Service, *request_ids: str, rank: int | None = None) -> list[Reader]:
    """Ask for these while no engine can take them, and wait until they are held."""
    before = service.llm.held_requests
    readers = [ask(service, request_id, rank) for request_id in request_ids]
    await turns()
    assert service.llm.held_requests == before + len(request_ids)
    return readers


def ask(service: Service, request_id: str, rank: int | None = None, prompt: int = 8) -> Reader:
    prompted = service.llm.input.prepare([5] * prompt, data_parallel_rank=rank)

    async def read() -> list[Delta]:
        return [delta async for delta in service.llm.generate(request_id, prompted)]

    return asyncio.create_task(read())


async def turns() -> None:
    """Let the readers begin, and the dispatcher take their requests."""
    for _ in range(4):
        await asyncio.sleep(0)


async def finish(engine: ScriptedEngine, request: AddRequest) -> None:
    engine.answer(request, request.num_output_tokens, [5], FinishReason.STOP)


async def finish_all(engine: ScriptedEngine, count: int) -> list[str]:
    """Answer so many requests, one after the other; return their ids."""
    served = []
    for _ in range(count):
        request = await engine.request()
        served.append(request.request_id)
        await finish(engine, request)
    return served


async def leave(readers: Iterable[Reader]) -> None:
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)


async def soon(reader: Reader) -> list[Delta]:
    """Wait for the end of the request, but not for the hold timeout."""
    return await asyncio.wait_for(reader, PATIENCE)
