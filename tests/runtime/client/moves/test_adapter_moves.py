"""A request for a LoRA adapter goes on in another engine if one cannot get the adapter."""

import asyncio

import pytest

from kvasir.client.request_errors import EngineUnavailable, InvalidRequest
from kvasir.config.frontend_settings import ServerConfig
from kvasir.link.protocol import FEATURE_LORA, AdaptersHeld, AddRequest, FinishReason, Ready, RefusalKind
from kvasir.request.adapter import Adapter
from runtime.client.moves.test_migration import first_of
from runtime.client.scripted_engine import ScriptedEngine
from runtime.client.service import Service
from runtime.link_messages import output_of

SQL = Adapter("sql", "hf://org/sql", "d" * 64)
READY = Ready(16, 64, 128, 8, features=(FEATURE_LORA,))
REASON = "no route to the hub"
REFUSALS = pytest.mark.parametrize("refusal", [RefusalKind.ADAPTER_UNFIT, RefusalKind.ADAPTER_UNREAD])


async def connected(service: Service, *, holds: bool = False) -> ScriptedEngine:
    engine = service.connect(ready=READY, rank=len(service.engines))
    await service.until(lambda: service.usable(engine))
    if holds:
        engine.link.show_adapters(AdaptersHeld((SQL,)))
        known = service.llm.engines[engine.identity.incarnation]
        await service.until(lambda: bool(known.adapters))
    return engine


def ask(service: Service) -> "asyncio.Task[list[int]]":
    async def read() -> list[int]:
        prompted = service.prompted().with_core(adapter=SQL)
        return [token async for delta in service.llm.generate("r", prompted) for token in delta.token_ids]

    return asyncio.create_task(read())


def refuse(engine: ScriptedEngine, request: AddRequest, position: int, refusal: RefusalKind) -> None:
    engine.answer(request, position, [], FinishReason.ERROR, error=REASON, refusal=refusal)


async def moved_stream(service: Service) -> "tuple[asyncio.Task[list[int]], ScriptedEngine, AddRequest]":
    """Return a stream whose engine died after a token, an engine without its adapter, and its request."""
    first = await connected(service, holds=True)
    reader = ask(service)
    first.answer(await first.request(), 0, [5])
    await service.until(lambda: service.observer.tokens == [1])
    without = await connected(service)
    first.die("out of memory")
    return reader, without, await without.request()


@REFUSALS
async def test_a_stream_goes_on_in_the_engine_with_its_adapter(service: Service, refusal: RefusalKind) -> None:
    reader, without, moved = await moved_stream(service)
    others = [await connected(service), await connected(service, holds=True), await connected(service)]
    refuse(without, moved, 1, refusal)
    again = await others[1].request()
    assert (again.attempt, output_of(again), again.adapter) == (3, [5], SQL)
    others[1].answer(again, 1, [6], FinishReason.STOP)
    assert await reader == [5, 6]


@pytest.mark.parametrize("count", [1, 2])
@REFUSALS
async def test_the_reason_is_sent_when_no_engine_has_the_adapter(
    service: Service, count: int, refusal: RefusalKind
) -> None:
    engines = [await connected(service) for _ in range(count)]
    reader = ask(service)
    left = list(engines)
    while left:
        engine = await first_of(service, left)
        left.remove(engine)
        refuse(engine, await engine.request(), 0, refusal)
    expected = InvalidRequest if refusal is RefusalKind.ADAPTER_UNFIT else EngineUnavailable
    with pytest.raises(expected, match=REASON):
        await reader


async def test_a_refused_adapter_waits_for_a_starting_engine(service: Service) -> None:
    engine = await connected(service)
    starting = service.connect(rank=1)
    await service.until(lambda: len(service.llm.engines) == 2)
    reader = ask(service)
    refuse(engine, await engine.request(), 0, RefusalKind.ADAPTER_UNREAD)
    await service.until(lambda: service.llm.held_requests == 1)
    starting.link.announce_ready(READY)
    starting.answer(await starting.request(), 0, [5], FinishReason.STOP)
    assert await reader == [5]


@REFUSALS
async def test_a_stream_waits_for_the_successor_of_its_engine(service: Service, refusal: RefusalKind) -> None:
    reader, without, moved = await moved_stream(service)
    refuse(without, moved, 1, refusal)
    if refusal is RefusalKind.ADAPTER_UNFIT:  # engines are alike
        with pytest.raises(InvalidRequest, match=REASON):
            await reader
        return
    await service.until(lambda: service.llm.held_requests == 1)
    successor = await connected(service)
    successor.answer(await successor.request(), 1, [6], FinishReason.STOP)
    assert await reader == [5, 6]


async def test_a_waiting_request_gets_the_reason_in_the_end(service: Service) -> None:
    engine = await connected(service)
    starting = service.connect(rank=1)
    await service.until(lambda: len(service.llm.engines) == 2)
    reader = ask(service)
    refuse(engine, await engine.request(), 0, RefusalKind.ADAPTER_UNFIT)
    await service.until(lambda: service.llm.held_requests == 1)
    starting.die("out of memory")
    with pytest.raises(InvalidRequest, match=REASON):
        await reader
    assert (service.llm.held_requests, service.llm.live_requests) == (0, 0)


@pytest.mark.parametrize("server", [ServerConfig(hold_timeout=0)])
async def test_a_service_that_holds_none_sends_the_reason(service: Service) -> None:
    engine = await connected(service)
    service.connect(rank=1)
    await service.until(lambda: len(service.llm.engines) == 2)
    reader = ask(service)
    refuse(engine, await engine.request(), 0, RefusalKind.ADAPTER_UNFIT)
    with pytest.raises(InvalidRequest, match=REASON):
        await reader
