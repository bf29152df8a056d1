"""Requests that come while no engine can take them are held, in order, within limits."""

import asyncio
import re
from collections.abc import Iterable

import pytest

from kvasir.client.async_llm import Delta
from kvasir.client.request_errors import EngineUnavailable, InvalidRequest
from kvasir.config.frontend_settings import ServerConfig
from kvasir.link.protocol import Abort, AddRequest, FinishReason, RefusalKind
from runtime.client.scripted_engine import READY, ScriptedEngine
from runtime.client.service import HOLDS_NONE, LIVE_LIMIT, Service

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


async def test_held_requests_are_answered_in_order_when_an_engine_comes(service: Service) -> None:
    names = [f"r{n}" for n in range(5)]
    readers = await held(service, *names)
    engine = service.connect()
    await service.until(lambda: engine.identity.incarnation in service.llm.engines)
    assert service.llm.held_requests == 5  # an engine that is starting takes none
    engine.link.announce_ready(READY)
    assert await finish_all(engine, 5) == names
    for reader in readers:
        assert [delta.token_ids for delta in await reader] == [[5]]
    assert service.llm.held_requests == service.llm.live_requests == 0
    assert len(service.observer.holds) == len(service.observer.started) == len(service.observer.finished) == 5


async def test_a_bad_request_is_refused_before_it_is_held(service: Service) -> None:
    with pytest.raises(InvalidRequest, match="500 tokens"):
        ask(service, "long", prompt=500)
    assert service.llm.held_requests == service.llm.live_requests == 0


async def test_an_engine_gets_no_more_than_it_can_soon_compute(service: Service) -> None:
    readers = await held(service, *(f"r{n}" for n in range(3 * ROWS)))
    first = await service.engine(0)
    sent = [await first.request() for _ in range(ROWS + 2)]
    assert service.llm.held_requests == 2 * ROWS - 2
    late = ask(service, "late")  # waits behind the held ones
    await turns()
    assert service.llm.held_requests == 2 * ROWS - 1
    await finish(first, sent.pop())
    sent.append(await first.request())  # the room of the one that has ended
    second = await service.engine(1)
    others = [await second.request() for _ in range(ROWS + 2)]
    assert [request.request_id for request in sent[-1:] + others] == [
        f"r{n}" for n in range(ROWS + 2, 2 * ROWS + 5)
    ]
    assert service.llm.held_requests == ROWS - 4
    await leave([*readers, late])
    assert service.llm.held_requests == service.llm.live_requests == 0


async def test_the_room_of_clients_that_left_is_used_at_once(service: Service) -> None:
    readers = await held(service, *(f"r{n}" for n in range(ROWS + 4)))
    engine = await service.engine()
    assert [(await engine.request()).request_id for _ in range(ROWS + 2)][-1] == f"r{ROWS + 1}"
    await leave(readers[:1])
    assert isinstance(await engine.message(), Abort)
    assert (await engine.request()).request_id == f"r{ROWS + 2}"
    await leave(readers)


async def test_a_client_that_leaves_frees_its_place(service: Service) -> None:
    readers = await held(service, "a", "b", "c")
    await leave(readers[1:2])
    assert service.llm.held_requests == 2
    engine = await service.engine()
    assert await finish_all(engine, 2) == ["a", "c"]
    await asyncio.gather(readers[0], readers[2])
    assert engine.messages() == []


async def test_a_pinned_request_waits_for_its_rank_and_delays_no_other(service: Service) -> None:
    (pinned,) = await held(service, "pinned", rank=1)
    (free,) = await held(service, "free")
    first = await service.engine(0)
    assert await finish_all(first, 1) == ["free"]
    await free
    later = ask(service, "later")
    assert await finish_all(first, 1) == ["later"]
    await later
    assert service.llm.held_requests == 1
    assert await finish_all(await service.engine(1), 1) == ["pinned"]
    await pinned


async def test_held_requests_of_two_lanes_keep_their_order(service: Service) -> None:
    readers = await held(service, "a") + await held(service, "b", rank=0) + await held(service, "c")
    assert await finish_all(await service.engine(0), 3) == ["a", "b", "c"]
    await asyncio.gather(*readers)


async def test_a_request_of_a_stopping_engine_waits_in_front_of_fresh_ones(service: Service) -> None:
    first = await service.engine()
    moved = ask(service, "moved")
    refused = await first.request()
    first.link.drain()
    await service.until(lambda: not service.usable(first))
    fresh = await held(service, "fresh")
    first.answer(refused, 0, [], FinishReason.ERROR, error="it stops", refusal=RefusalKind.UNAVAILABLE)
    await service.until(lambda: service.llm.held_requests == 2)
    second = await service.engine()
    requests = [await second.request() for _ in range(2)]
    assert [(request.request_id, request.attempt) for request in requests] == [("moved", 2), ("fresh", 1)]
    for request in requests:
        await finish(second, request)
    await asyncio.gather(moved, *fresh)
    assert [reason for reason, *_ in service.observer.finished] == [FinishReason.STOP] * 2


async def test_a_held_request_that_was_started_ends_once_in_the_metrics(service: Service) -> None:
    engine = await service.engine()
    moved = ask(service, "moved")
    refused = await engine.request()
    engine.answer(refused, 0, [], FinishReason.ERROR, error="it stops", refusal=RefusalKind.UNAVAILABLE)
    await service.until(lambda: service.llm.held_requests == 1)
    await leave([moved])
    assert [reason for reason, *_ in service.observer.finished] == [FinishReason.ABORT]
    assert len(service.observer.started) == 1


@with_server(max_held_requests=3)
async def test_the_number_of_held_requests_is_limited(service: Service) -> None:
    readers = await held(service, "a", "b", "c")
    with pytest.raises(EngineUnavailable, match=r"none is connected\), and 3 requests wait .*--max-held-requests"):
        await ask(service, "d")
    await leave(readers[:1])
    readers += await held(service, "e")
    await leave(readers)


@with_server(max_held_bytes=4 * 24)
async def test_the_size_of_held_prompts_is_limited(service: Service) -> None:
    readers = await held(service, "a", "b")
    with pytest.raises(EngineUnavailable, match=r"prompts of 64 bytes .*--max-held-bytes"):
        await ask(service, "c", prompt=9)
    readers.append(ask(service, "d", prompt=8))
    await turns()
    assert service.llm.held_requests == 3
    await leave(readers)
    readers = [ask(service, "long", prompt=100)]  # alone, any prompt that the model takes can wait
    await turns()
    assert service.llm.held_requests == 1
    await leave(readers)


@with_server(max_held_requests=ROWS + 3)
async def test_a_request_that_waits_for_room_needs_no_place(service: Service) -> None:
    """The limits are for requests without an engine. With one, a new request must not be worse off than before."""
    readers = await held(service, *(f"r{n}" for n in range(ROWS + 3)))
    engine = await service.engine()
    sent = [await engine.request() for _ in range(ROWS + 2)]
    readers += [ask(service, f"late{n}") for n in range(2 * ROWS)]
    await turns()
    assert service.llm.held_requests == 2 * ROWS + 1
    await finish(engine, sent[0])
    await readers[0]
    await leave(readers)


@with_server(hold_timeout=0.05)
async def test_a_request_waits_no_longer_than_the_hold_timeout(service: Service) -> None:
    readers = [ask(service, "a"), ask(service, "b", rank=3)]
    with pytest.raises(
        EngineUnavailable, match=r"the request has waited 0.05 s for one \(--hold-timeout\)"
    ) as caught:
        await readers[0]
    assert caught.value.retry_after > 0
    with pytest.raises(EngineUnavailable, match="no engine of data-parallel rank 3"):
        await readers[1]
    assert service.llm.held_requests == service.llm.live_requests == 0
    assert not service.observer.started
    assert not service.observer.finished


async def test_a_request_that_waits_for_room_has_no_timeout(service: Service) -> None:
    readers = await held(service, *(f"r{n}" for n in range(ROWS + 3)))
    engine = await service.engine()
    last, holding = readers[-1], service.llm._dispatcher._holding
    (waiting,) = holding._held.values()
    waiting.deadline = 0.0
    holding._wake()
    assert service.llm.held_requests == 1
    assert waiting.deadline > asyncio.get_running_loop().time()
    engine.link.drain()
    await service.until(lambda: not service.usable(engine))
    waiting.deadline = 0.0
    holding._wake()
    with pytest.raises(EngineUnavailable, match="--hold-timeout"):
        await last
    await leave(readers)


@HOLDS_NONE
async def test_a_timeout_of_0_holds_nothing(service: Service) -> None:
    with pytest.raises(EngineUnavailable, match=re.escape("no engine is ready (none is connected): try again")):
        await ask(service, "a")


async def test_closing_fails_held_requests(service: Service) -> None:
    readers = await held(service, "a", "b")
    await service.llm.close()
    for reader in readers:
        with pytest.raises(EngineUnavailable, match="shutting down"):
            await reader


async def test_no_timer_is_left_when_nothing_is_held(service: Service) -> None:
    holding = service.llm._dispatcher._holding
    readers = await held(service, "a", "b")
    timer = holding._timer
    assert timer is not None
    await leave(readers[:1])
    assert holding._timer is timer  # one for all
    await leave(readers)
    assert timer.cancelled()
    assert holding._timer is None


@with_server(hold_timeout=0.05)
async def test_an_engine_that_refused_the_request_is_not_waited_for(service: Service) -> None:
    """Otherwise it would wait for room in an engine that never gets it."""
    engine = await service.engine()
    moved = ask(service, "moved")
    refused = await engine.request()
    engine.answer(refused, 0, [], FinishReason.ERROR, error="it stops", refusal=RefusalKind.UNAVAILABLE)
    with pytest.raises(EngineUnavailable, match="--hold-timeout"):
        await moved
    assert [reason for reason, *_ in service.observer.finished] == [FinishReason.ERROR]
