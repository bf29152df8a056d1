import asyncio

import pytest

from kvasir.client.async_llm import Delta
from kvasir.client.request_errors import EngineUnavailable, InvalidRequest, RequestFailed
from kvasir.link.protocol import FinishReason, RefusalKind
from runtime.client.scripted_engine import ScriptedEngine
from runtime.client.service import HOLDS_NONE, Service
from runtime.link_messages import output_of


def ask(service: Service, request_id: str, rank: int) -> asyncio.Task[list[Delta]]:
    prompted = service.llm.input.prepare([5] * 8, data_parallel_rank=rank)

    async def read() -> list[Delta]:
        return [delta async for delta in service.llm.generate(request_id, prompted)]

    return asyncio.create_task(read())


async def finish(engine: ScriptedEngine, reader: asyncio.Task[list[Delta]]) -> None:
    engine.answer(await engine.request(), 0, [5], FinishReason.STOP)
    await reader


async def test_pinned_requests_all_go_to_their_rank_however_loaded(service: Service) -> None:
    engines = [await service.engine(rank) for rank in range(3)]
    readers = [ask(service, f"r{n}", rank=1) for n in range(6)]
    requests = [await engines[1].request() for _ in readers]
    assert engines[0].messages() == engines[2].messages() == []
    for request in requests:
        engines[1].answer(request, 0, [5], FinishReason.STOP)
    await asyncio.gather(*readers)


async def test_every_choice_of_a_pinned_prompt_is_pinned(service: Service) -> None:
    prompted = service.llm.input.prepare([5], data_parallel_rank=2)
    assert [prompted.child(index).data_parallel_rank for index in range(3)] == [2, 2, 2]


async def test_pinned_requests_count_as_load_of_their_rank(service: Service) -> None:
    first, second = await service.engine(0), await service.engine(1)
    pinned = ask(service, "pinned", rank=0)
    request = await first.request()
    free = service.ask("free")
    await finish(second, free)
    first.answer(request, 0, [5], FinishReason.STOP)
    await pinned


async def test_an_unknown_rank_is_refused_before_it_is_queued(service: Service) -> None:
    await service.engine(0)
    await service.engine(2)
    with pytest.raises(InvalidRequest, match="ranks 0, 2"):
        service.llm.input.prepare([5], data_parallel_rank=1)


@HOLDS_NONE
async def test_a_rank_that_is_not_ready_does_not_use_another(service: Service) -> None:
    other = await service.engine(0)
    loading = service.connect(rank=1)
    await service.until(lambda: loading.identity.incarnation in service.llm.engines)
    with pytest.raises(EngineUnavailable, match=r"rank 1 is ready \(engine-1-\w+ is Starting\)") as caught:
        await ask(service, "r", rank=1)
    assert caught.value.retry_after > 0
    assert other.messages() == []
    assert service.llm.live_requests == 0


@HOLDS_NONE
async def test_a_rank_that_left_is_waited_for_until_it_is_back(service: Service) -> None:
    await service.engine(0)
    gone = await service.engine(1)
    gone.close()
    await service.until(lambda: not service.usable(gone))
    with pytest.raises(EngineUnavailable, match=r"rank 1 is ready \(none is connected\)"):
        await ask(service, "early", rank=1)
    back = await service.engine(1)
    await finish(back, ask(service, "later", rank=1))


@HOLDS_NONE
async def test_a_refused_pinned_request_never_moves(service: Service) -> None:
    pinned, other = await service.engine(0), await service.engine(1)
    reader = ask(service, "r", rank=0)
    request = await pinned.request()
    refusal = RefusalKind.UNAVAILABLE
    pinned.answer(request, 0, [], FinishReason.ERROR, error="rank 0 stops", refusal=refusal)
    with pytest.raises(EngineUnavailable, match="rank 0 stops"):
        await reader
    assert other.messages() == []


async def test_a_pinned_request_waits_until_its_engine_is_not_full(service: Service) -> None:
    pinned, other = await service.engine(0), await service.engine(1)
    reader = ask(service, "r", rank=0)
    request = await pinned.request()
    refusal = RefusalKind.OVERLOADED
    pinned.answer(request, 0, [], FinishReason.ERROR, error="rank 0 is full", refusal=refusal)
    pinned.step([])
    await finish(pinned, reader)
    assert other.messages() == []


async def test_refused_pinned_request_may_use_another_of_its_rank(service: Service) -> None:
    old, other = await service.engine(0), await service.engine(1)
    reader = ask(service, "r", rank=0)
    request = await old.request()
    successor = await service.engine(0)
    old.answer(request, 0, [], FinishReason.ERROR, error="stopping", refusal=RefusalKind.UNAVAILABLE)
    await finish(successor, reader)
    assert other.messages() == []


@HOLDS_NONE
async def test_a_pinned_request_of_a_lost_engine_never_moves(service: Service) -> None:
    pinned, other = await service.engine(0), await service.engine(1)
    reader = ask(service, "r", rank=0)
    await pinned.request()
    pinned.die("out of memory")
    with pytest.raises(RequestFailed, match=r"rank 0 is ready \(none is connected\)"):
        await reader
    assert other.messages() == []


async def test_pinned_request_continues_on_the_successor_of_its_engine(service: Service) -> None:
    pinned, other = await service.engine(0), await service.engine(1)
    reader = ask(service, "r", rank=0)
    pinned.answer(await pinned.request(), 0, [7])
    successor = await service.engine(0)
    pinned.die("out of memory")
    request = await successor.request()
    assert (request.attempt, output_of(request)) == (2, [7])
    successor.answer(request, 1, [5], FinishReason.STOP)
    assert [token for delta in await reader for token in delta.token_ids] == [7, 5]
    assert other.messages() == []
