import asyncio

import pytest

from kvasir.client.async_llm import Delta
from kvasir.client.dispatch import kv_source, router
from kvasir.link.protocol import FEATURE_PREFIX_CACHE, AddRequest, CacheEvents, FinishReason, Ready, RefusalKind
from kvasir.request.hashing import HASH_BYTES
from runtime.client.moves.test_migration import connected, give_back
from runtime.client.scripted_engine import READY, ScriptedEngine
from runtime.client.service import Service


def ready(numerics: str, kv_address: str) -> Ready:
    return Ready(READY.block_size, READY.num_blocks, 128, 8, numerics=numerics, kv_address=kv_address)


async def begin(service: Service, engine: ScriptedEngine) -> None:
    service.ask("r")
    request = await engine.request()
    assert request.kv_source == ""
    engine.answer(request, 0, [5])
    await service.until(lambda: service.observer.tokens == [1])


@pytest.mark.parametrize(
    ("numerics", "address", "expected"),
    [("a", "ipc:///kv/0", "ipc:///kv/0"), ("b", "ipc:///kv/0", ""), ("", "ipc:///kv/0", ""), ("a", "", "")],
)
async def test_a_request_that_is_given_back_names_its_engine(
    service: Service, numerics: str, address: str, expected: str
) -> None:
    """`numerics` and `address`: of the engine that had it."""
    first = await connected(service, 0, ready(numerics, address))
    service.ask("r")
    request = await first.request()
    first.answer(request, 0, [5])
    other = await connected(service, 1, ready("a", "ipc:///kv/1"))
    give_back(first, request, 1, RefusalKind.UNAVAILABLE)
    moved = await other.request()
    assert moved.kv_source == expected
    other.answer(moved, 1, [6], FinishReason.STOP)


async def test_a_request_of_a_lost_engine_names_no_engine(service: Service) -> None:
    first = await connected(service, 0, ready("a", "ipc:///kv/0"))
    await begin(service, first)
    other = await connected(service, 1, ready("a", "ipc:///kv/1"))
    first.die("out of memory")
    moved = await other.request()
    assert moved.kv_source == ""
    other.answer(moved, 1, [6], FinishReason.STOP)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_prompt_names_the_engine_that_has_reported_it(
    service: Service, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    for module in (kv_source, router):
        monkeypatch.setattr(module, "MIN_FETCH_TOKENS", 16)
    engines = [await connected(service, rank, caching(rank)) for rank in range(2)]
    first, reader = await ask_rank(service, engines, 0)
    assert first.kv_source == ""
    assert len(first.block_hashes) == 5 * HASH_BYTES
    engines[0].link.send(engines[0].frontend, CacheEvents(0, first.block_hashes))
    engines[0].answer(first, 0, [6], FinishReason.STOP)  # after the report
    await reader
    if is_lost:
        engines[0].die("out of memory")
        await service.until(lambda: not service.usable(engines[0]))
    second, reader = await ask_rank(service, engines, 1)
    assert second.kv_source == ("" if is_lost else "ipc:///kv/0")
    engines[1].answer(second, 0, [6], FinishReason.STOP)
    await reader


def caching(rank: int) -> Ready:
    kv_address = f"ipc:///kv/{rank}"
    return Ready(16, 64, 128, 8, (FEATURE_PREFIX_CACHE,), numerics="a", kv_address=kv_address)


async def ask_rank(
    service: Service, engines: list[ScriptedEngine], rank: int
) -> tuple[AddRequest, asyncio.Task[list[Delta]]]:
    prompted = service.llm.input.prepare(list(range(5, 90)), max_tokens=4, data_parallel_rank=rank)

    async def read() -> list[Delta]:
        return [delta async for delta in service.llm.generate(f"to {rank}", prompted)]

    reader = asyncio.create_task(read())
    return await engines[rank].request(), reader
